"""One knapsack decides which jobs grow in the next slot, promised or not (design section 4; decision 0014).

Lyra divides the GPUs beyond base demands by a multiple-choice knapsack over completion time saved (section
3.5.2). ElasticFlow grants them where they save most GPU time (Algorithm 2). Here one knapsack values both: a
job that grows uses GPUs of the next slot that would be idle, ends sooner, and needs fewer GPUs later.
"""

from __future__ import annotations

from math import inf

import numpy as np

from kernels.compiling import kernel
from scheduling.core.elasticflow.elastic_allocation import LOWEST_LEVEL, pays
from scheduling.core.elasticflow.first_growth import GrowthRules
from scheduling.core.elasticflow.minimum_satisfactory_share import ALL_LEVELS, Terms, fill
from scheduling.core.lyra.knapsack import NO_ITEM, ItemGroups, choose_items
from scheduling.core.plans.timeline import GIVE_BACK, TAKE, Timeline, free_until, occupy
from scheduling.core.question.arrays import (
    TIME_TOLERANCE,
    BoolArray,
    JobArrays,
    Plans,
    new_draft,
    planned_gpus,
    set_plan,
)
from scheduling.core.question.snapshot import FloatArray, IntArray


@kernel
def growth_items(
    jobs: JobArrays,
    plans: Plans,
    rows: IntArray,
    promised: BoolArray,
    due: FloatArray,
    timeline: Timeline,
    rules: GrowthRules,
    left: int,
) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    """List every larger level that each job could have in the next slot, with its value.

    Each job is planned anew with the larger level (in time if it is promised) while all others keep their
    plans. Returns (first item of each row, extra GPUs, value in seconds of completion time, level).
    """
    offsets = np.zeros(rows.size + 1, dtype=np.int64)
    weight = [0 for _ in range(0)]
    value = [0.0 for _ in range(0)]
    size = [0 for _ in range(0)]
    draft = new_draft(2 * timeline.pieces + 64)
    for position in range(rows.size):
        job = rows[position]
        held = planned_gpus(plans, job, rules.slots.origin)
        if draft.time.size < timeline.pieces + 2 * plans.length[job] + 16:
            draft = new_draft(2 * (timeline.pieces + 2 * plans.length[job]) + 16)
        highest = ALL_LEVELS if promised[job] else LOWEST_LEVEL
        timeline = occupy(timeline, plans, job, GIVE_BACK, promised[job])
        room = free_until(timeline, rules.slots.origin + rules.slots.seconds)
        for level in range(jobs.level_count[job]):
            target = jobs.levels[job, level]
            if target <= held or target - held > left or target > room:
                continue
            if not pays(jobs, job, held, target, timeline, rules):
                continue
            pieces, finish, gpu_time = fill(
                jobs, job, due[job], timeline, rules.slots,
                Terms(promised[job], rules.suffix, target, highest, 0.0), draft,
            )  # fmt: skip
            if pieces == 0:
                continue
            # GPUs of the next slot count as free: no other job is planned on them.
            worth = rules.relief * (plans.gpu_time[job] - gpu_time + (target - held) * rules.slots.seconds)
            if not promised[job] and plans.finish[job] < inf:
                worth += plans.finish[job] - finish
            if worth > TIME_TOLERANCE:
                weight.append(target - held)
                value.append(worth)
                size.append(target)
        timeline = occupy(timeline, plans, job, TAKE, promised[job])
        offsets[position + 1] = len(weight)
    return offsets, _whole_numbers(weight), _numbers(value), _whole_numbers(size)


@kernel
def _whole_numbers(listed: list[int]) -> IntArray:
    """A list as an array of whole numbers."""
    numbers = np.empty(len(listed), dtype=np.int64)
    for position in range(len(listed)):
        numbers[position] = listed[position]
    return numbers


@kernel
def _numbers(listed: list[float]) -> FloatArray:
    """A list as an array of floats."""
    numbers = np.empty(len(listed))
    for position in range(len(listed)):
        numbers[position] = listed[position]
    return numbers


@kernel
def grow(
    jobs: JobArrays,
    plans: Plans,
    rows: IntArray,
    sizes: IntArray,
    promised: BoolArray,
    due: FloatArray,
    timeline: Timeline,
    rules: GrowthRules,
) -> tuple[Plans, Timeline, int]:
    """Plan each of ``rows`` anew with its level of ``sizes`` in the next slot, where that still fits.

    Returns (plans, timeline, number of jobs that grew).
    """
    grown = 0
    draft = new_draft(2 * timeline.pieces + 64)
    for position in range(rows.size):
        job = rows[position]
        if draft.time.size < timeline.pieces + 2 * plans.length[job] + 16:
            draft = new_draft(2 * (timeline.pieces + 2 * plans.length[job]) + 16)
        highest = ALL_LEVELS if promised[job] else LOWEST_LEVEL
        timeline = occupy(timeline, plans, job, GIVE_BACK, promised[job])
        if sizes[position] <= free_until(timeline, rules.slots.origin + rules.slots.seconds):
            pieces, finish, gpu_time = fill(
                jobs, job, due[job], timeline, rules.slots,
                Terms(promised[job], rules.suffix, sizes[position], highest, 0.0), draft,
            )  # fmt: skip
            if pieces > 0:
                plans = set_plan(plans, job, draft, pieces, finish, gpu_time)
                grown += 1
        timeline = occupy(timeline, plans, job, TAKE, promised[job])
    return plans, timeline, grown


def grow_by_knapsack(
    jobs: JobArrays,
    plans: Plans,
    rows: IntArray,
    promised: BoolArray,
    due: FloatArray,
    timeline: Timeline,
    rules: GrowthRules,
    most: int,
) -> tuple[Plans, Timeline, int]:
    """Let the jobs grow whose growth has the greatest total value, at most ``most`` jobs.

    ``rows``: jobs that may grow, in a fixed order; jobs without a plan or without iterations left are
    skipped. Returns (plans, timeline, number of jobs that grew).
    """
    left = int(free_until(timeline, rules.slots.origin + rules.slots.seconds))
    rows = rows[(plans.length[rows] > 0) & (jobs.finished_at[rows] == inf)]
    if left == 0 or rows.size == 0 or most == 0:
        return plans, timeline, 0
    offsets, weight, value, size = growth_items(jobs, plans, rows, promised, due, timeline, rules, left)
    if not weight.size:
        return plans, timeline, 0
    row_of_item = np.repeat(rows, np.diff(offsets))
    held = np.flatnonzero(size == jobs.gpus[row_of_item])
    present = np.full(rows.size, NO_ITEM)
    present[np.repeat(np.arange(rows.size), np.diff(offsets))[held]] = held
    chosen = choose_items(ItemGroups(offsets, weight, value, present), left).chosen
    chosen = chosen[chosen != NO_ITEM]
    chosen = chosen[np.argsort(-value[chosen], kind="stable")][:most]
    plans, timeline, grown = grow(
        jobs, plans, row_of_item[chosen], size[chosen], promised, due, timeline, rules
    )
    return plans, timeline, int(grown)
