"""Invariants that must hold once the platform is calm (pure), on rows of the database and workers' logs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Violation:
    """A violated invariant."""

    invariant: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what}"


@dataclass(frozen=True)
class Step:
    """Log entry of a worker that began an iteration. ``at``: by the machine's monotonic clock."""

    job: str
    generation: int
    rank: int
    gpu: str
    iteration: int
    at: float


def trained_twice(steps: Iterable[Step]) -> list[Violation]:
    """Return workers of an earlier generation that began an iteration after a later generation had begun
    one."""
    first: dict[str, dict[int, Step]] = {}
    last: dict[str, dict[int, Step]] = {}
    for step in steps:
        mine = first.setdefault(step.job, {})
        if step.generation not in mine or step.at < mine[step.generation].at:
            mine[step.generation] = step
        mine = last.setdefault(step.job, {})
        if step.generation not in mine or step.at > mine[step.generation].at:
            mine[step.generation] = step
    found = []
    for job, begun in first.items():
        for earlier, later in itertools.combinations(sorted(begun), 2):
            late, early = last[job][earlier], begun[later]
            if late.at > early.at:
                text = (
                    f"job {job}: rank {late.rank} of generation {earlier} began iteration {late.iteration} "
                    f"{late.at - early.at:.2f} s after generation {later} had begun iteration "
                    f"{early.iteration}"
                )
                found.append(Violation("nobody trained twice", text))
    return found


def gpus_used_by_two(steps: Iterable[Step]) -> list[Violation]:
    """Return GPUs on which workers of two jobs trained at the same time."""
    spans: dict[str, dict[tuple[str, int, int], tuple[float, float]]] = {}
    for step in steps:
        mine = spans.setdefault(step.gpu, {})
        key = (step.job, step.generation, step.rank)
        begin, end = mine.get(key, (step.at, step.at))
        mine[key] = (min(begin, step.at), max(end, step.at))
    found = []
    for gpu, by_worker in spans.items():
        ordered = sorted(by_worker.items(), key=lambda entry: entry[1])
        for (one, (_, end)), (other, (begin, _)) in itertools.combinations(ordered, 2):
            if one[0] != other[0] and begin < end:
                text = f"{gpu}: job {other[0]} began {end - begin:.2f} s before job {one[0]} was done"
                found.append(Violation("no GPU with two owners", text))
    return found


def given_up_within_a_lease(silences: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Return servers whose work was given away while their agents' leases held: their workers may still
    train.

    Each row is of a server that was given up: ``server``, ``silent_seconds`` since its last report,
    ``lease_seconds``.
    """
    return [
        Violation(
            "no server given up within its lease",
            f"{row['server']} was given up after {row['silent_seconds']:.1f} s of silence, its lease lasts "
            f"{row['lease_seconds']:.0f} s",
        )
        for row in silences
        if row["silent_seconds"] < row["lease_seconds"]
    ]


def lost_jobs(jobs: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Return jobs that did not complete, although their code is correct and they were not cancelled.

    Each row: ``id``, ``name``, ``state``, ``iterations_done``, ``max_iterations``, ``failure``.
    """
    return [
        Violation(
            "no job lost",
            f"{row['name']} ({row['id']}) is {row['state']} at {row['iterations_done']} of "
            f"{row['max_iterations']}: {row['failure'] or 'it does not go on'}",
        )
        for row in jobs
        if row["state"] not in ("completed", "declined")
    ]


def incomplete_starts(
    starts: Iterable[Mapping[str, Any]], points: Iterable[Mapping[str, Any]]
) -> list[Violation]:
    """Return generations whose start used an incomplete recovery point.

    A start: ``job``, ``number``, ``start`` (as sent to agents), ``live_at``. A point: ``job``,
    ``generation``, ``iteration``, ``world_size``, ``complete_at``, ``shards`` (number of durable ones).
    """
    known = {(row["job"], row["generation"], row["iteration"]): row for row in points}
    found = []
    for row in starts:
        start = row["start"] or {"from": "nothing"}
        if start["from"] not in ("checkpoint", "memory"):
            continue
        who = f"job {row['job']}, generation {row['number']}, from {start['from']}"
        named = sorted({int(shard["id"]) for shard in start["shards"]})
        if named != list(range(int(start["world_size"]))):
            text = f"{who}: shards {named} of a point of {start['world_size']}"
            found.append(Violation("no incomplete recovery point used", text))
        if not all(shard.get("holders") for shard in start["shards"]):
            found.append(
                Violation("no incomplete recovery point used", f"{who}: nobody holds one of its shards")
            )
        if start["from"] != "checkpoint":
            continue
        point = known.get((row["job"], start["generation"], start["iteration"]))
        if point is None or point["complete_at"] is None or point["shards"] != point["world_size"]:
            text = f"{who}: iteration {start['iteration']} of generation {start['generation']} is not whole"
            found.append(Violation("no incomplete recovery point used", text))
        elif row["live_at"] is not None and point["complete_at"] > row["live_at"]:
            found.append(
                Violation("no incomplete recovery point used", f"{who}: it was whole only afterwards")
            )
    return found


def different_orders(jobs: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Return completed jobs that took other samples, or in another order, than a job of the same seed and
    length."""
    digests: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in jobs:
        if row["state"] == "completed" and row["sample_order_digest"]:
            same = (row["function"], row["seed"], row["iterations_done"], row["global_batch_size"])
            digests.setdefault(same, {})[row["sample_order_digest"]] = row["id"]
    return [
        Violation("every sample once, in its order", f"jobs {' and '.join(found.values())} differ")
        for found in digests.values()
        if len(found) > 1
    ]


def commands_from_nowhere(
    memories: Mapping[str, Mapping[str, Any]], epoch: int, generations: Mapping[str, int]
) -> list[Violation]:
    """Return agents that remember an epoch or a generation that the control plane never issued, or has
    forgotten.

    ``memories``: each agent's stored state, by its server. ``generations``: the last one of each job.
    """
    found = []
    for server, memory in memories.items():
        if memory["epoch"] > epoch:
            text = f"{server} has heard epoch {memory['epoch']}, the control plane is at {epoch}"
            found.append(Violation("no command forgotten", text))
        for job, _, generation, *_ in memory["generations"]:
            if job in generations and generation > generations[job]:
                text = f"{server} has heard generation {generation} of {job}, which has {generations[job]}"
                found.append(Violation("no command forgotten", text))
    return found


def broken_promises(jobs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return rows of promises that were broken, except those that their owner gave back."""
    kept = ("met", "none")
    given_back = ("cancelled", "paused_by_owner")
    return [
        row for row in jobs if row["promise_outcome"] not in kept and row["void_reason"] not in given_back
    ]


def steps_of(
    lines: Sequence[tuple[str, int, int, str]], gpus: Mapping[tuple[str, int, int], str]
) -> list[Step]:
    """Return the steps in workers' logs (job, generation, rank, text).

    Each line ``STEP iteration seconds`` is one. ``gpus``: GPU of each rank; workers without an entry only
    measured.
    """
    found = []
    for job, generation, rank, text in lines:
        gpu = gpus.get((job, generation, rank))
        if gpu is None:
            continue
        for line in text.splitlines():
            words = line.split()
            if len(words) == 3 and words[0] == "STEP":
                found.append(Step(job, generation, rank, gpu, int(words[1]), float(words[2])))
    return found
