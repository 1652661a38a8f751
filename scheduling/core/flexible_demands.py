"""Phase 2: how many flexible workers each elastic job gets (Lyra section 3.5.2; spec 2.5 step 3, 2.12)."""

from __future__ import annotations

import heapq
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from scheduling.core.base_and_flexible import (
    LENT,
    OWNED,
    Demands,
    base_on,
    combined_rate,
    most_on,
    speeds_on,
)
from scheduling.core.compiling import kernel
from scheduling.core.knapsack import NO_ITEM, Choice, ItemGroups, choose_items
from scheduling.core.snapshot import IntArray


class Growth(StrEnum):
    """How GPUs beyond base demands are shared out."""

    KNAPSACK = "knapsack"
    """Greatest total of seconds saved, for owned and lent servers apart."""

    SINGLE_KNAPSACK = "single_knapsack"
    """The same over both kinds at once, in normalised GPUs, as the thesis words it."""

    NONE = "none"
    """Base demand only."""

    GREATEST_GAIN = "greatest_gain"
    """AFS: one step at a time to the job that gains the greatest part of its work per GPU."""

    ROUND_ROBIN = "round_robin"
    """Gandiva: running jobs grow in turn while nobody waits, and shrink when somebody does."""


class Sharing(NamedTuple):
    """Extra workers per job, and the choices that led there."""

    extra: IntArray
    choices: tuple[Choice, ...]


@kernel
def extra_counted_from(demands, base, job, kind):  # type: ignore[no-untyped-def]
    """The number of workers on that kind from which extra ones are counted.

    The job's base where all of it is there; else, on a mix, the base that it would have there.
    """
    if base[kind, job] > 0 and base[1 - kind, job] == 0:
        return base[kind, job]
    return base_on(demands, job, kind)


@kernel
def _exceeds_range(demands, job, workers, kind, elsewhere):  # type: ignore[no-untyped-def]
    """Whether so many workers' worth on one kind, and extra ones on the other, are more than the job may have."""
    other_base = base_on(demands, job, 1 - kind)
    if other_base == 0:
        return False
    return workers * other_base + elsewhere * base_on(demands, job, kind) > most_on(
        demands, job, 1 - kind
    ) * base_on(demands, job, kind)


@kernel
def _flexible_items(demands, jobs, kind, base, extra, efficiency, by_rate):  # type: ignore[no-untyped-def]
    """Item groups of the jobs' extra workers on one kind: (offsets, extra, weight, value, present).

    ``extra[kind, job]`` are the extra workers held; those on the other kind stay. An item's value is the time it saves
    against no extra workers on this kind, in seconds; with ``by_rate`` its rate as part of the job's work, per second.
    """
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
        origin = extra_counted_from(demands, base, job, kind)
        elsewhere = extra[1 - kind, job]
        before = _rate_with(demands, job, base, kind, 0, elsewhere, efficiency)
        for entry in range(speeds.offsets[job], speeds.offsets[job + 1]):
            more = speeds.workers[entry] - origin
            if more <= 0:
                continue
            if elsewhere > 0 and _exceeds_range(demands, job, speeds.workers[entry], kind, elsewhere):
                break
            after = speeds.rate[entry]
            if demands.mixes[job]:
                after = _rate_with(demands, job, base, kind, more, elsewhere, efficiency)
            if after <= before or before <= 0.0:
                continue
            number[items] = more
            weight[items] = more * demands.gpus_per_worker[job]
            if by_rate:
                value[items] = (after - before) / demands.work[job]
            else:
                value[items] = demands.remaining[job] / before - demands.remaining[job] / after
            if more == extra[kind, job]:
                present[group] = items
            items += 1
        offsets[group + 1] = items
    return offsets, number[:items], weight[:items], value[:items], present


@kernel
def _rate_with(demands, job, base, kind, here, elsewhere, efficiency):  # type: ignore[no-untyped-def]
    """Rate with the base and so many extra workers on one kind and on the other."""
    if kind == OWNED:
        return combined_rate(demands, job, base[OWNED, job] + here, base[LENT, job] + elsewhere, efficiency)
    return combined_rate(demands, job, base[OWNED, job] + elsewhere, base[LENT, job] + here, efficiency)


@kernel
def growing_jobs(demands, base, kind, mixing):  # type: ignore[no-untyped-def]
    """Elastic jobs that may have extra workers on that kind: those whose base is there, or that mix if ``mixing``.

    A mixing job whose base is on servers on loan alone does not grow onto owned ones.
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
def _greatest_gain(offsets, weight, value, capacity):  # type: ignore[no-untyped-def]
    """One item after the other to the group that gains most per weight by its next one; ties to the first group."""
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
        if following < offsets[group + 1]:
            extra = weight[following] - weight[item]
            heapq.heappush(queue, (-(value[following] - value[item]) / extra, group, following, extra))
    return chosen


def share_out(
    demands: Demands,
    jobs: IntArray,
    kind: int,
    base: IntArray,
    extra: IntArray,
    capacity: int,
    efficiency: float,
    growth: Growth,
    work_limit: int,
) -> Sharing:
    """Extra workers on one kind of servers for ``jobs``, with so many GPUs.

    ``base`` and ``extra``: workers by kind and job; ``extra`` holds the present ones on this kind and those already
    decided on the other.
    """
    more = np.zeros(base.shape[1], dtype=np.int64)
    if jobs.size == 0 or growth is Growth.NONE or capacity <= 0:
        return Sharing(more, ())
    by_rate = growth is Growth.GREATEST_GAIN
    offsets, number, weight, value, present = _flexible_items(
        demands, jobs, kind, base, extra, efficiency, by_rate
    )
    if by_rate:
        chosen = _greatest_gain(offsets, weight, value, capacity)
        choices: tuple[Choice, ...] = ()
    else:
        choice = choose_items(ItemGroups(offsets, weight, value, present), capacity, work_limit)
        chosen, choices = choice.chosen, (choice,)
    takes = chosen != NO_ITEM
    more[jobs[takes]] = number[chosen[takes]]
    return Sharing(more, choices)


def share_out_together(
    demands: Demands,
    jobs: tuple[IntArray, IntArray],
    base: IntArray,
    extra: IntArray,
    capacities: tuple[int, int],
    expansion: int,
    work_limit: int,
) -> tuple[IntArray, Choice]:
    """Extra workers by kind and job from one knapsack over both kinds (spec A8).

    A GPU of an owned server counts as ``expansion`` GPUs on loan.
    """
    more = np.zeros_like(base)
    parts = [_flexible_items(demands, jobs[kind], kind, base, extra, 1.0, False) for kind in (OWNED, LENT)]
    ahead = parts[OWNED][1].size
    later = parts[LENT][4]
    groups = ItemGroups(
        np.concatenate((parts[OWNED][0], parts[LENT][0][1:] + ahead)),
        np.concatenate((parts[OWNED][2] * expansion, parts[LENT][2])),
        np.concatenate((parts[OWNED][3], parts[LENT][3])),
        np.concatenate((parts[OWNED][4], np.where(later == NO_ITEM, NO_ITEM, later + ahead))),
    )
    choice = choose_items(groups, capacities[OWNED] * expansion + capacities[LENT], work_limit)
    split = jobs[OWNED].size
    for kind, chosen in ((OWNED, choice.chosen[:split]), (LENT, choice.chosen[split:] - ahead)):
        takes = choice.chosen[:split] != NO_ITEM if kind == OWNED else choice.chosen[split:] != NO_ITEM
        more[kind, jobs[kind][takes]] = parts[kind][1][chosen[takes]]
    return more, choice
