"""The facts of a recovery at one moment, and its phases (Gemini's recovery flow)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RecoveryPhase(StrEnum):
    """The progress of a recovery. Phases follow each other in this order."""

    #: A failure was found and classified.
    DETECTED = "detected"
    #: All workers of older generations are stopped, and every lost server is fenced.
    FROZEN = "frozen"
    #: Every rank has a server.
    RESOURCED = "resourced"
    #: Every rank knows where its state is.
    SOURCES_CHOSEN = "sources_chosen"
    #: Workers start: a process for every rank, its model, the connections between them.
    STARTING = "starting"
    #: Ranks load their state.
    LOADING = "loading"
    #: Every rank has loaded the same version.
    VERIFIED = "verified"
    #: Training has resumed.
    RUNNING = "running"


PHASES = tuple(RecoveryPhase)


@dataclass(frozen=True, slots=True)
class RecoveryFacts:
    """The state of one recovery of one job. Ranks are the job's machines, as positions of its placement.

    ``generation``: the recovering one; workers of older ones must stop. ``phase_since``: when the phase
    began. ``failed``: ranks whose machine is lost; empty for a failure of processes alone.
    ``newly_failed``: ranks whose machine, or its replacement, was lost since then.
    ``stopped``: ranks whose workers of older generations are gone. ``fenced``: lost ranks whose server has
    stopped itself. ``resourced``: lost ranks that have another server. ``sources_chosen``: whether the
    version and each rank's source are chosen. ``started``: ranks whose worker only has to load its state.
    ``loaded``: the version of each rank that has loaded. ``training``: whether an iteration was completed.
    ``attempts``: starts since the failure that ended failed, given up or lost. ``placed_anew``: whether all
    ranks are given servers again, including survivors, as the live planner does. ``readers``: how many ranks
    load the state; None for all of ``ranks``. ``given_up``: whether the ranks that were to resume were
    stopped before they trained.
    """

    phase: RecoveryPhase
    generation: int
    ranks: int
    phase_since: float
    failed: frozenset[int] = frozenset()
    newly_failed: frozenset[int] = frozenset()
    stopped: frozenset[int] = frozenset()
    fenced: frozenset[int] = frozenset()
    resourced: frozenset[int] = frozenset()
    sources_chosen: bool = False
    started: frozenset[int] = frozenset()
    loaded: tuple[tuple[int, int | None], ...] = ()
    training: bool = False
    attempts: int = 0
    placed_anew: bool = False
    readers: int | None = None
    given_up: bool = False

    @property
    def hardware(self) -> bool:
        """Whether a machine is lost, not only its processes."""
        return bool(self.failed)

    @property
    def survivors(self) -> frozenset[int]:
        """Ranks whose machine is not lost."""
        return frozenset(range(self.ranks)) - self.failed

    @property
    def loading_ranks(self) -> int:
        """Number of ranks that load the state."""
        return self.ranks if self.readers is None else self.readers

    @property
    def unplaced(self) -> frozenset[int]:
        """Ranks that wait for a server."""
        return (frozenset(range(self.ranks)) if self.placed_anew else self.failed) - self.resourced


@dataclass(frozen=True, slots=True)
class RecoveryBounds:
    """The longest duration of each phase, in seconds, before the recovery restarts. Waiting for a server is
    unbounded.

    ``freeze_seconds``: None waits for survivors' workers without a bound, where restarting gains nothing.
    ``prepare_seconds``: until all workers have started. ``load_seconds``: from then until all have loaded.
    ``start_seconds``: from then until the first iteration.
    """

    freeze_seconds: float | None
    prepare_seconds: float
    load_seconds: float
    start_seconds: float
