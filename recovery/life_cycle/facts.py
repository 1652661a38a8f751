"""The facts on which a recovery depends, read at one moment, and its phases (Gemini, specification 2.10)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RecoveryPhase(StrEnum):
    """How far a recovery has come. Phases follow each other in this order."""

    #: A failure was found and classified.
    DETECTED = "detected"
    #: No worker of an older generation trains any more, and every lost server is fenced.
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
    #: Training goes on.
    RUNNING = "running"


PHASES = tuple(RecoveryPhase)


@dataclass(frozen=True, slots=True)
class RecoveryFacts:
    """One recovery of one job. Ranks are the job's machines, as positions of its placement.

    ``generation``: the one that recovers; workers of older ones must stop. ``failed``: ranks whose machine is
    lost; none for a failure of processes alone. ``newly_failed``: ranks whose machine, or the one that
    stands in for it, was lost since then. ``stopped``: ranks
    whose workers of older generations are gone. ``fenced``: lost ranks whose server has stopped itself.
    ``resourced``: lost ranks that have another server. ``sources_version``: the version chosen; None before.
    ``started``: ranks whose worker has nothing left to do but to load its state.
    ``loaded``: for each rank that has loaded, its version. ``training``: whether an iteration was completed.
    ``phase_since``: when the phase began. ``attempts``: how often ranks did not load their state in time.
    ``placed_anew``: whether all ranks are given servers anew, survivors' too, as the live planner does.
    ``readers``: how many ranks load the state, where it is another number than before; None for as many.
    ``given_up``: whether the ranks that were to go on were stopped before they trained.
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
        """Whether a machine is lost, and not its processes alone."""
        return bool(self.failed)

    @property
    def survivors(self) -> frozenset[int]:
        """Ranks whose machine is there."""
        return frozenset(range(self.ranks)) - self.failed

    @property
    def loading_ranks(self) -> int:
        """How many ranks load the state."""
        return self.ranks if self.readers is None else self.readers

    @property
    def unplaced(self) -> frozenset[int]:
        """Ranks that wait for a server."""
        return (frozenset(range(self.ranks)) if self.placed_anew else self.failed) - self.resourced


@dataclass(frozen=True, slots=True)
class RecoveryBounds:
    """How long a phase may take, in seconds, before it is begun anew. Waiting for a server has no bound.

    ``freeze_seconds``: None where nothing is won by beginning anew: there, survivors' workers are waited for.
    ``prepare_seconds``: until all workers have started. ``start_seconds``: from then, once all have loaded,
    to the first iteration.
    """

    freeze_seconds: float | None
    prepare_seconds: float
    load_seconds: float
    start_seconds: float
