"""The agent's decision: a pure function of the desired state, the actual state and the memory of past orders.

No clock, no files, no processes: the same arguments give the same decision, so tests can try thousands of
lost, duplicate, delayed and reordered answers of the control plane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from workers.agent.orders.desired_state import (
    DesiredState,
    GenerationDesire,
    Goal,
    Purpose,
    WorkerSlot,
    goal_rank,
)

JobKey = tuple[str, Purpose]
WorkerName = tuple[str, Purpose, int, int]  # job, purpose, generation, rank


@dataclass(frozen=True)
class SeenGeneration:
    """The highest generation of a job that was ever obeyed here, the planner's epoch that it came from, and
    the ranks of it that were ever started here."""

    generation: int
    epoch: int = 0
    #: Ranks that were ever started here.
    started: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Memory:
    """The durable memory of an agent: with it, no late message can start anything that is over.

    `epoch` is the highest of any obeyed answer: an answer of an older planner is ignored as a whole. Within
    an answer a job's entry may be older than another job's, but not older than what was seen of the same job.
    """

    epoch: int = 0
    generations: Mapping[JobKey, SeenGeneration] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerView:
    """A worker's state for the decision. `settled`: whether all its files and log are delivered."""

    #: Identifier of the worker on this server.
    key: str
    job: str
    purpose: Purpose
    generation: int
    rank: int
    #: Whether any of its processes runs.
    alive: bool
    #: The last goal sent to it; None before.
    goal: Goal | None
    #: Source of its state; None before it is known.
    start: Mapping[str, Any] | None
    settled: bool

    @property
    def name(self) -> WorkerName:
        """The worker's role, as opposed to `key`, which identifies the process."""
        return (self.job, self.purpose, self.generation, self.rank)


@dataclass(frozen=True)
class StartWorker:
    """Start the worker of `slot`, or take it from the warm pool."""

    desire: GenerationDesire
    slot: WorkerSlot


@dataclass(frozen=True)
class SetGoal:
    """Send a worker a goal, and where its state comes from."""

    key: str
    goal: Goal
    start: Mapping[str, Any] | None


@dataclass(frozen=True)
class KillWorker:
    """End a worker and all its processes, at once."""

    key: str
    reason: str


@dataclass(frozen=True)
class ForgetWorker:
    """Delete the remains of an ended worker that is no longer desired."""

    key: str


Action = StartWorker | SetGoal | KillWorker | ForgetWorker


@dataclass(frozen=True)
class Decision:
    """Actions in order, the memory to be stored *before* they are done, and refused entries with reasons.

    `lost`: workers that should be here, were started once, and have left nothing (for example because the
    data folder was deleted). They are reported as gone and never started again.
    """

    #: In the order in which they are done.
    actions: tuple[Action, ...]
    #: To be stored before the actions.
    memory: Memory
    lost: tuple[tuple[GenerationDesire, WorkerSlot], ...] = ()
    #: Refused entries of the answer, with reasons.
    refused: tuple[str, ...] = ()


def decide(
    desired: DesiredState,
    workers: Iterable[WorkerView],
    memory: Memory,
    *,
    may_start: bool,
    most_starts: int | None = None,
) -> Decision:
    """Return the steps from `workers` to `desired`.

    Entries are judged by the memory from before the whole answer, so their order does not matter.
    `may_start` is False without a lease and while the agent is stopping. `most_starts`: limit of workers
    available now; the others wait for a later decision.
    """
    starts_left = inf if most_starts is None else most_starts
    views = list(workers)
    present = {view.name: view for view in views}
    actions: list[Action] = []
    lost: list[tuple[GenerationDesire, WorkerSlot]] = []
    refused: list[str] = []
    named: set[WorkerName] = set()
    seen = dict(memory.generations)
    for desire in desired.generations:
        running = any(view.name[:3] == (desire.job, desire.purpose, desire.generation) for view in views)
        objection = _objection(desire, memory)
        if objection is not None and not running:
            refused.append(objection)
            continue
        job_key = (desire.job, desire.purpose)
        before = seen.get(job_key, SeenGeneration(0))
        # Without a lease nothing can be started, so no entry that requires a start is recorded as obeyed.
        can_start = may_start and starts_left > 0
        if running or can_start:
            before = seen[job_key] = _with(before, desire)
        for slot in desire.workers:
            name = (desire.job, desire.purpose, desire.generation, slot.rank)
            named.add(name)
            view = present.get(name)
            if view is not None:
                actions.extend(_change_goal(view, desire))
            elif desire.generation == before.generation and slot.rank in before.started:
                lost.append((desire, slot))
            elif can_start and starts_left > 0 and desire.goal != "stop" and objection is None:
                actions.append(StartWorker(desire, slot))
                starts_left -= 1
                if desire.generation == before.generation:
                    before = seen[job_key] = replace(before, started=before.started | {slot.rank})
    for view in views:
        if view.name not in named:
            if view.alive:
                actions.insert(0, KillWorker(view.key, "not wanted any more"))
            elif view.settled:
                actions.append(ForgetWorker(view.key))
    return Decision(
        tuple(actions), Memory(max(memory.epoch, desired.epoch), seen), tuple(lost), tuple(refused)
    )


def is_stale(desired: DesiredState, newest: tuple[int, int] | None, memory: Memory) -> bool:
    """Whether an answer is older than one already obeyed; `newest` is the newest (epoch, version) so far."""
    return desired.epoch < memory.epoch or (newest is not None and (desired.epoch, desired.version) < newest)


def _objection(desire: GenerationDesire, memory: Memory) -> str | None:
    """Return why an entry must not be started, or None."""
    seen = memory.generations.get((desire.job, desire.purpose))
    if seen is None or (desire.epoch >= seen.epoch and desire.generation >= seen.generation):
        return None
    return (
        f"job {desire.job}: generation {desire.generation} of epoch {desire.epoch} is refused, as generation "
        f"{seen.generation} of epoch {seen.epoch} was already obeyed"
    )


def _with(seen: SeenGeneration, desire: GenerationDesire) -> SeenGeneration:
    """Return the memory of a job once `desire` is obeyed."""
    epoch = max(seen.epoch, desire.epoch)
    if desire.generation > seen.generation:
        return SeenGeneration(desire.generation, epoch)
    return replace(seen, epoch=epoch)


def _change_goal(view: WorkerView, desire: GenerationDesire) -> Iterable[Action]:
    """Return a goal change. Goals only advance; a new source of the state is sent with an unchanged goal."""
    if not view.alive or goal_rank(desire.goal) < goal_rank(view.goal):
        return ()
    if desire.goal == view.goal and desire.start == view.start:
        return ()
    return (SetGoal(view.key, desire.goal, desire.start),)
