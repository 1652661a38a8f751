"""What an agent does next: a pure function of what should be, what is, and what it has obeyed before.

No clock, no files, no processes: the same arguments give the same decision, so lost, doubled, delayed and
reordered answers of the control plane can be tried by the thousand in tests.
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
    started: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Memory:
    """What an agent must never forget: with it, no late message can start anything that is over.

    `epoch` is the highest of any answer obeyed: a whole answer of an older planner is ignored. Within an
    answer a job's entry may be older than another job's, as long as it is not older than what was seen of the
    same job.
    """

    epoch: int = 0
    generations: Mapping[JobKey, SeenGeneration] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerView:
    """A worker as the decision sees it. `settled`: all that it left behind (files, log) has been
    delivered."""

    key: str
    job: str
    purpose: Purpose
    generation: int
    rank: int
    alive: bool
    goal: Goal | None
    start: Mapping[str, Any] | None
    settled: bool

    @property
    def name(self) -> WorkerName:
        """What this worker is, as opposed to `key`, which process it is."""
        return (self.job, self.purpose, self.generation, self.rank)


@dataclass(frozen=True)
class StartWorker:
    """Start (or take from the warm pool) the worker of `slot`."""

    desire: GenerationDesire
    slot: WorkerSlot


@dataclass(frozen=True)
class SetGoal:
    """Tell a worker a goal, and where its state comes from."""

    key: str
    goal: Goal
    start: Mapping[str, Any] | None


@dataclass(frozen=True)
class KillWorker:
    """End a worker and all that it started, at once."""

    key: str
    reason: str


@dataclass(frozen=True)
class ForgetWorker:
    """Delete what is left of a worker that is gone and that nobody asks about."""

    key: str


Action = StartWorker | SetGoal | KillWorker | ForgetWorker


@dataclass(frozen=True)
class Decision:
    """Actions in order, the memory to be stored *before* they are done, and what was not done, with reasons.

    `lost` names workers that should be here, were started once, and of which nothing is left (say, because
    the data folder was deleted): they are reported as gone and never started again.
    """

    actions: tuple[Action, ...]
    memory: Memory
    lost: tuple[tuple[GenerationDesire, WorkerSlot], ...] = ()
    refused: tuple[str, ...] = ()


def decide(
    desired: DesiredState,
    workers: Iterable[WorkerView],
    memory: Memory,
    *,
    may_start: bool,
    most_starts: int | None = None,
) -> Decision:
    """The steps from `workers` to `desired`.

    Whether an entry is obeyed is judged by the memory from before the whole answer, so the order of its
    entries does not matter. `may_start` is False while no lease is held or the agent is stopping.
    `most_starts`: how many workers can be had now, where that is limited; the others wait for another
    decision.
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
        # Without a lease nothing can be started, so nothing is obeyed yet that would have to be.
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
    """Whether an answer is older than one already obeyed; `newest` is the (epoch, version) of the newest so
    far."""
    return desired.epoch < memory.epoch or (newest is not None and (desired.epoch, desired.version) < newest)


def _objection(desire: GenerationDesire, memory: Memory) -> str | None:
    """Why nothing of an entry may be started, or None."""
    seen = memory.generations.get((desire.job, desire.purpose))
    if seen is None or (desire.epoch >= seen.epoch and desire.generation >= seen.generation):
        return None
    return (
        f"job {desire.job}: generation {desire.generation} of epoch {desire.epoch} is refused, as generation "
        f"{seen.generation} of epoch {seen.epoch} was already obeyed"
    )


def _with(seen: SeenGeneration, desire: GenerationDesire) -> SeenGeneration:
    """What is remembered of a job once `desire` is obeyed."""
    epoch = max(seen.epoch, desire.epoch)
    if desire.generation > seen.generation:
        return SeenGeneration(desire.generation, epoch)
    return replace(seen, epoch=epoch)


def _change_goal(view: WorkerView, desire: GenerationDesire) -> Iterable[Action]:
    """Goals only move on; a new source of the state is passed on while the goal stays the same."""
    if not view.alive or goal_rank(desire.goal) < goal_rank(view.goal):
        return ()
    if desire.goal == view.goal and desire.start == view.start:
        return ()
    return (SetGoal(view.key, desire.goal, desire.start),)
