"""The next step of a recovery, from its facts: a level-triggered, resumable state machine.

Each call returns the instruction that is due, however late or often it is made. An instruction is repeated
until the facts show its effect, so executing it must be idempotent. A failure during a recovery restarts it
with all failed machines together, under a new generation. So does a phase that exceeds its bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recovery.life_cycle.facts import RecoveryBounds, RecoveryFacts, RecoveryPhase


@dataclass(frozen=True, slots=True)
class MoveTo:
    """Enter a phase and record the time."""

    phase: RecoveryPhase


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """Stop all workers of generations before this one on these ranks."""

    generation: int
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class AskForServers:
    """Request a server for each of these ranks: a standby server, or one from the planner."""

    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class ChooseSources:
    """Choose the version and each rank's source, and send them to the ranks."""

    generation: int


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """Restart the recovery under the next generation, with these failed ranks.

    ``durable``: all ranks load the durable state, because the state in memory could not be used. The live
    service ignores it: `memory_points` rejects a memory state after its first failed start.
    """

    failed: frozenset[int]
    reason: str
    durable: bool = False


@dataclass(frozen=True, slots=True)
class TrainOn:
    """Let all ranks resume training from the version that they have loaded."""

    generation: int


RecoveryInstruction = MoveTo | StopWorkers | AskForServers | ChooseSources | BeginAnew | TrainOn


def next_step(facts: RecoveryFacts, bounds: RecoveryBounds, now: float) -> RecoveryInstruction | None:
    """Return the instruction that is due now; None while the recovery waits for a fact."""
    # A failed rank that already has another server has lost that one, too.
    new = (facts.newly_failed - facts.failed) | (facts.newly_failed & facts.resourced)
    if new and facts.phase is not RecoveryPhase.RUNNING:
        return BeginAnew(facts.failed | new, "another machine failed")
    if facts.training and facts.phase is not RecoveryPhase.RUNNING:
        # Ranks that train hold their servers and have loaded; messages of older generations are refused.
        return MoveTo(RecoveryPhase.RUNNING)
    if facts.given_up and facts.phase is not RecoveryPhase.RUNNING:
        return BeginAnew(facts.failed, "the ranks that were to go on were stopped before they trained")
    return _STEPS[facts.phase](facts, bounds, now)


def _detected(facts: RecoveryFacts, bounds: RecoveryBounds, now: float) -> RecoveryInstruction | None:
    waiting = facts.survivors - facts.stopped
    if waiting:
        # A survivor that cannot stop its workers counts as lost: its lease ends, and it is fenced.
        bound = bounds.freeze_seconds
        if bound is not None and now - facts.phase_since > bound:
            return BeginAnew(facts.failed | waiting, "workers did not stop in time")
        return StopWorkers(facts.generation, waiting)
    return MoveTo(RecoveryPhase.FROZEN) if facts.failed <= facts.fenced else None


def _frozen(facts: RecoveryFacts, bounds: RecoveryBounds, now: float) -> RecoveryInstruction | None:
    waiting = facts.unplaced
    return AskForServers(waiting) if waiting else MoveTo(RecoveryPhase.RESOURCED)


def _resourced(facts: RecoveryFacts, bounds: RecoveryBounds, now: float) -> RecoveryInstruction | None:
    if facts.sources_chosen:
        return MoveTo(RecoveryPhase.SOURCES_CHOSEN)
    return ChooseSources(facts.generation)


def _sources_chosen(facts: RecoveryFacts, bounds: RecoveryBounds, now: float) -> RecoveryInstruction | None:
    return MoveTo(RecoveryPhase.STARTING)


def _starting(facts: RecoveryFacts, bounds: RecoveryBounds, now: float) -> RecoveryInstruction | None:
    # A rank that has loaded has started, even if its start was not observed.
    if len(facts.started | {rank for rank, _ in facts.loaded}) >= facts.loading_ranks:
        return MoveTo(RecoveryPhase.LOADING)
    if now - facts.phase_since > bounds.prepare_seconds:
        return BeginAnew(facts.failed, "a worker did not start in time")
    return None


def _loading(facts: RecoveryFacts, bounds: RecoveryBounds, now: float) -> RecoveryInstruction | None:
    loaded = dict(facts.loaded)
    versions = set(loaded.values())
    if len(versions) > 1:
        return BeginAnew(facts.failed, "ranks loaded different versions", durable=True)
    if len(loaded) == facts.loading_ranks:
        return MoveTo(RecoveryPhase.VERIFIED)
    if now - facts.phase_since > bounds.load_seconds:
        # After a second failed start the recovery stops relying on peers.
        again = facts.attempts > 0
        return BeginAnew(facts.failed, "a rank did not load its state in time", durable=again)
    return None


def _verified(facts: RecoveryFacts, bounds: RecoveryBounds, now: float) -> RecoveryInstruction | None:
    if facts.training:
        return MoveTo(RecoveryPhase.RUNNING)
    if now - facts.phase_since > bounds.start_seconds:
        return BeginAnew(facts.failed, "training did not go on in time")
    return TrainOn(facts.generation)


def _running(facts: RecoveryFacts, bounds: RecoveryBounds, now: float) -> RecoveryInstruction | None:
    return None


_STEPS: dict[RecoveryPhase, Callable[[RecoveryFacts, RecoveryBounds, float], RecoveryInstruction | None]] = {
    RecoveryPhase.DETECTED: _detected,
    RecoveryPhase.FROZEN: _frozen,
    RecoveryPhase.RESOURCED: _resourced,
    RecoveryPhase.SOURCES_CHOSEN: _sources_chosen,
    RecoveryPhase.STARTING: _starting,
    RecoveryPhase.LOADING: _loading,
    RecoveryPhase.VERIFIED: _verified,
    RecoveryPhase.RUNNING: _running,
}
