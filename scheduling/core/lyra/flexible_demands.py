"""Phase 2: how many flexible workers each elastic job gets (Lyra section 3.5.2)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from kernels.compiling import kernel
from scheduling.core.lyra.base_and_flexible import (
    LENT,
    OWNED,
    Demands,
    base_on,
    combined_rate,
    most_on,
    part_rate,
    speeds_on,
)
from scheduling.core.lyra.knapsack import NO_ITEM, WORK_LIMIT, Choice, ItemGroups, choose_items
from scheduling.core.lyra.worker_placement import Held
from scheduling.core.question.snapshot import FloatArray, IntArray
from scheduling.core.question.two_phase_options import TwoPhaseOptions


class Growth(StrEnum):
    """How the GPUs that base demands leave are divided among elastic jobs."""

    KNAPSACK = "knapsack"
    """The greatest total of seconds saved, for owned and on-loan servers separately."""

    SINGLE_KNAPSACK = "single_knapsack"
    """One knapsack over owned and on-loan servers, in normalised GPUs, as in the thesis."""

    NONE = "none"
    """Base demand only."""

    GREATEST_GAIN = "greatest_gain"
    """AFS: one step at a time to the job that gains the greatest part of its work per GPU (Lyra section
    3.7.1)."""

    ROUND_ROBIN = "round_robin"
    """Gandiva: running jobs grow in turn while no job waits, and shrink for a waiting one (Lyra 3.7.1)."""


@dataclass(frozen=True)
class SharingRules(TwoPhaseOptions):
    """How flexible demand is shared out: the operator's choices, and these two fields."""

    #: The rule by which jobs grow.
    growth: Growth = Growth.KNAPSACK
    #: A knapsack is solved exactly up to this product of capacity and items.
    work_limit: int = WORK_LIMIT


@kernel
def extra_counted_from(demands: Demands, base: IntArray, job: int, kind: int) -> int:
    """The number of workers on one kind of servers beyond which workers count as extra.

    This is the job's base where all base workers are on that kind; for a job on both kinds it is the base
    demand the job would have there.
    """
    if base[kind, job] > 0 and base[1 - kind, job] == 0:
        return int(base[kind, job])
    return base_on(demands, job, kind)


@kernel
def _exceeds_range(demands: Demands, job: int, workers: int, kind: int, elsewhere: int) -> bool:
    """Whether ``workers`` on one kind of servers and ``elsewhere`` extra ones on the other exceed the job's
    range."""
    other_base = base_on(demands, job, 1 - kind)
    if other_base == 0:
        return False
    return workers * other_base + elsewhere * base_on(demands, job, kind) > most_on(
        demands, job, 1 - kind
    ) * base_on(demands, job, kind)


class Decided(NamedTuple):
    """What one tick has decided so far, by kind of servers (row) and job (column)."""

    #: Base workers.
    base: IntArray
    #: Extra workers.
    extra: IntArray
    #: Workers before this tick.
    held: Held


@kernel
def _flexible_items(
    demands: Demands,
    jobs: IntArray,
    kind: int,
    decided: Decided,
    capacity: int,
    efficiency: float,
    change_seconds: float,
    by_rate: bool,
) -> tuple[IntArray, IntArray, IntArray, FloatArray, IntArray]:
    """Knapsack items for the jobs' extra workers on one kind: (offsets, extra, weight, value, present).

    Extra workers decided on the other kind stay. The value of an item is the seconds that it saves compared
    with no extra workers on this kind; with ``by_rate``, it is the gained rate as a share of the job's work,
    per second. A running job loses ``change_seconds`` by any change of its number of workers. Items heavier
    than ``capacity`` are omitted.
    """
    base, extra, held = decided
    speeds = speeds_on(demands, kind)
    offsets = np.zeros(jobs.size + 1, dtype=np.int64)
    most = 0
    for job in jobs:
        most += speeds.offsets[job + 1] - speeds.offsets[job]
    number = np.empty(most, dtype=np.int64)
    weight = np.empty(most, dtype=np.int64)
    value = np.empty(most)
    present = np.full(jobs.size, NO_ITEM)
    items = 0
    for group in range(jobs.size):
        job = jobs[group]
        gpus, remaining, work = demands.gpus_per_worker[job], demands.remaining[job], demands.work[job]
        origin = extra_counted_from(demands, base, job, kind)
        here, elsewhere = base[kind, job], extra[1 - kind, job]
        other_part = _part_elsewhere(demands, job, base, 1 - kind, elsewhere)
        before = _rate_without_extra(demands, job, base, kind, elsewhere, efficiency)
        runs = held.base[OWNED, job] + held.base[LENT, job] > 0
        first, last = speeds.offsets[job], speeds.offsets[job + 1]
        reached = first
        for entry in range(first, last):
            more = speeds.workers[entry] - origin
            if more <= 0 or before <= 0.0:
                continue
            if more * gpus > capacity:
                break
            if elsewhere > 0 and _exceeds_range(demands, job, speeds.workers[entry], kind, elsewhere):
                break
            while reached + 1 < last and speeds.workers[reached + 1] <= here + more:
                reached += 1
            after = speeds.rate[reached] * min(1.0, (here + more) / speeds.workers[reached])
            if other_part > 0.0:
                after = efficiency * (after + other_part)
            if after <= before:
                continue
            number[items] = more
            weight[items] = more * gpus
            if by_rate:
                value[items] = (after - before) / work
            else:
                value[items] = remaining / before - remaining / after
                if runs:
                    value[items] += _saved_by_staying(held.flexible[kind, job], more, change_seconds)
            if more == extra[kind, job]:
                present[group] = items
            items += 1
        offsets[group + 1] = items
    return offsets, number[:items], weight[:items], value[:items], present


@kernel
def _part_elsewhere(demands: Demands, job: int, base: IntArray, kind: int, extra: int) -> float:
    """Iterations per second that the job's workers on the other kind of servers add; 0 where it has none
    there."""
    return part_rate(speeds_on(demands, kind), job, base[kind, job] + extra)


@kernel
def _rate_without_extra(
    demands: Demands, job: int, base: IntArray, kind: int, elsewhere: int, efficiency: float
) -> float:
    """Iterations per second with the base and the workers decided on the other kind of servers."""
    if kind == OWNED:
        return combined_rate(demands, job, base[OWNED, job], base[LENT, job] + elsewhere, efficiency)
    return combined_rate(demands, job, base[OWNED, job] + elsewhere, base[LENT, job], efficiency)


@kernel
def _saved_by_staying(now: int, number: int, change_seconds: float) -> float:
    """The correction of an item's value, in seconds, for the time that a change of workers costs.

    The difference between two choices is then the seconds they save, less the changes that only one of them
    makes.
    """
    return change_seconds * ((1 if now > 0 else 0) - (1 if number != now else 0))


@kernel
def growing_jobs(demands: Demands, base: IntArray, kind: int, mixing: bool) -> IntArray:
    """Elastic jobs that may get extra workers on one kind of servers.

    These are the jobs with their base there; with ``mixing``, the jobs that may mix. A mixing job whose base
    is only on on-loan servers does not grow onto owned ones.
    """
    speeds = speeds_on(demands, kind)
    jobs = demands.gpus_per_worker.size
    found = np.empty(jobs, dtype=np.int64)
    count = 0
    for job in range(jobs):
        if demands.mixes[job] != mixing or speeds.offsets[job + 1] - speeds.offsets[job] < 2:
            continue
        if base[kind, job] > 0 or (mixing and kind == LENT and base[OWNED, job] > 0):
            found[count] = job
            count += 1
    return found[:count]


@kernel
def _greatest_gain(offsets: IntArray, weight: IntArray, value: FloatArray, capacity: int) -> IntArray:
    """Add items one by one, each to the group that gains most per weight; ties go to the first group."""
    groups = offsets.size - 1
    chosen = np.full(groups, NO_ITEM)
    queue = [(0.0, 0, 0, 0) for _ in range(0)]
    for group in range(groups):
        first = offsets[group]
        if first < offsets[group + 1]:
            queue.append((-value[first] / weight[first], group, first, weight[first]))
    heapq.heapify(queue)
    left = capacity
    while len(queue) > 0:
        _, group, item, extra = heapq.heappop(queue)
        if extra > left:
            continue
        left -= extra
        chosen[group] = item
        following = item + 1
        if following < offsets[group + 1] and value[following] > value[item]:
            extra = weight[following] - weight[item]
            heapq.heappush(queue, (-(value[following] - value[item]) / extra, group, following, extra))
    return chosen


def share_out(
    demands: Demands,
    jobs: IntArray,
    kind: int,
    base: IntArray,
    extra: IntArray,
    held: Held,
    capacity: int,
    rules: SharingRules,
) -> tuple[IntArray, tuple[Choice, ...]]:
    """Choose extra workers for each of ``jobs`` on one kind of servers, within ``capacity`` GPUs.

    ``base`` and ``extra`` are workers by kind and job. ``extra`` holds the workers already decided on the
    other kind and, on this kind, the number that wins ties. ``held`` is what each job had before. Returns the
    extra workers of each job and the knapsack, if one was solved.
    """
    more = np.zeros(base.shape[1], dtype=np.int64)
    if jobs.size == 0 or rules.growth is Growth.NONE or capacity <= 0:
        return more, ()
    by_rate = rules.growth is Growth.GREATEST_GAIN
    offsets, number, weight, value, present = _flexible_items(
        demands,
        jobs,
        kind,
        Decided(base, extra, held),
        capacity,
        rules.efficiency,
        rules.change_seconds,
        by_rate,
    )
    if by_rate:
        chosen = _greatest_gain(offsets, weight, value, capacity)
        choices: tuple[Choice, ...] = ()
    else:
        choice = choose_items(ItemGroups(offsets, weight, value, present), capacity, rules.work_limit)
        chosen, choices = choice.chosen, (choice,)
    takes = chosen != NO_ITEM
    more[jobs[takes]] = number[chosen[takes]]
    return more, choices


def share_out_together(
    demands: Demands,
    jobs: tuple[IntArray, IntArray],
    base: IntArray,
    extra: IntArray,
    held: Held,
    capacities: tuple[int, int],
    rules: SharingRules,
) -> tuple[IntArray, tuple[Choice, ...]]:
    """Choose extra workers on both kinds of servers by one knapsack (spec A8). Returns them by kind and job.

    A GPU of an owned server counts as ``expansion`` on-loan GPUs.
    """
    more = np.zeros_like(base)
    capacity = capacities[OWNED] * rules.expansion + capacities[LENT]
    decided = Decided(base, extra, held)
    parts = [
        _flexible_items(
            demands, jobs[kind], kind, decided, most, rules.efficiency, rules.change_seconds, False
        )
        for kind, most in ((OWNED, capacity // rules.expansion), (LENT, capacity))
    ]
    (owned_offsets, owned_number, owned_weight, owned_value, owned_present) = parts[OWNED]
    (lent_offsets, lent_number, lent_weight, lent_value, lent_present) = parts[LENT]
    ahead = owned_number.size
    groups = ItemGroups(
        np.concatenate((owned_offsets, lent_offsets[1:] + ahead)),
        np.concatenate((owned_weight * rules.expansion, lent_weight)),
        np.concatenate((owned_value, lent_value)),
        np.concatenate((owned_present, np.where(lent_present == NO_ITEM, NO_ITEM, lent_present + ahead))),
    )
    choice = choose_items(groups, capacity, rules.work_limit)
    number = np.concatenate((owned_number, lent_number))
    for kind, chosen in (
        (OWNED, choice.chosen[: jobs[OWNED].size]),
        (LENT, choice.chosen[jobs[OWNED].size :]),
    ):
        takes = chosen != NO_ITEM
        more[kind, jobs[kind][takes]] = number[chosen[takes]]
    return more, (choice,)
