"""Elastic allocation and best effort: Algorithm 2 of ElasticFlow (sections 4.2 and 4.4).

Best effort and other jobs without a promise are filled first, each at its lowest level (section 4.4). Then
Algorithm 2 grants the GPUs that are still free in the next slot, one level at a time, to the job that saves
the most GPU time per extra GPU.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import NamedTuple

import numpy as np

from kernels.compiling import NO, YES, kernel, leaf, whole
from scheduling.core.elasticflow.first_growth import GrowthRules
from scheduling.core.elasticflow.holding import hold_until, next_wake
from scheduling.core.elasticflow.minimum_satisfactory_share import ALL_LEVELS, Terms, fill
from scheduling.core.plans.slots import Slots
from scheduling.core.plans.timeline import (
    GIVE_BACK,
    TAKE,
    Timeline,
    compact,
    free_until,
    occupied,
    occupy,
    occupy_in_room,
    piece_at,
    with_room,
)
from scheduling.core.question.arrays import (
    TIME_TOLERANCE,
    BoolArray,
    Draft,
    JobArrays,
    Plans,
    new_draft,
    planned_gpus,
    plans_copied,
    set_plan,
)
from scheduling.core.question.snapshot import FloatArray, IntArray

LOWEST_LEVEL = whole(0)
STARTING = -1
GROWING = 0
NO_TARGET = whole(-1)


@kernel
def fill_unpromised(
    jobs: JobArrays,
    plans: Plans,
    order: IntArray,
    heads: IntArray,
    timeline: Timeline,
    slots: Slots,
) -> tuple[Plans, Timeline]:
    """Plan the jobs of ``order``, in that order, at their lowest level on the free capacity.

    ``heads``: GPUs fixed for the next slot, by row, or NO_HEAD. A job for which GPUs never come free gets no
    plan. Returns (plans, the timeline that is left).
    """
    draft = new_draft(timeline.pieces + 8)
    for job in order:
        if draft.time.size < timeline.pieces + 8:
            draft = new_draft(2 * timeline.pieces + 8)
        terms = Terms(NO, NO, heads[job], LOWEST_LEVEL, 0.0)
        pieces, finish, gpu_time = fill(jobs, job, inf, timeline, slots, terms, draft)
        plans.length[job] = 0
        if pieces > 0:
            plans = set_plan(plans, job, draft, pieces, finish, gpu_time)
            timeline = occupy(timeline, plans, job, TAKE, NO)
    return plans, timeline


@leaf
def pays(
    jobs: JobArrays,
    job: int,
    old: int,
    new: int,
    timeline: Timeline,
    rules: GrowthRules,
) -> bool:
    """Whether the step from level ``old`` to ``new`` wins ``minimum_gain`` iterations beyond its pauses.

    Iterations count as long as the timeline keeps ``new`` GPUs free for the job, and at most as
    long as growth is expected to last. If that is before the job ends, the pause of the way back counts too.
    A job that could keep more GPUs than ``old`` is compared with that.
    """
    if old < jobs.gpus[job] < new:
        old = jobs.gpus[job]
    old_rate = 0.0
    old_pause = 0.0
    way_back = 0.0
    new_rate = 0.0
    new_pause = 0.0
    for level in range(jobs.level_count[job]):
        if jobs.levels[job, level] == old:
            old_rate = jobs.throughput[job, level]
            way_back = jobs.pause[job, level]
            old_pause = way_back if old != jobs.gpus[job] else 0.0
        if jobs.levels[job, level] == new:
            new_rate = jobs.throughput[job, level]
            new_pause = jobs.pause[job, level] if new != jobs.gpus[job] else 0.0
    times, free, count = timeline
    origin = rules.slots.origin
    slot = rules.slots.seconds
    rest = new_pause + jobs.work[job] / new_rate
    span = rest
    piece = piece_at(times, count, origin + slot)
    while piece < count and times[piece] < origin + span:
        if free[0, piece] < new:
            span = max(slot, times[piece] - origin)
            break
        piece += 1
    if old_rate > 0.0 and new != jobs.gpus[job]:
        span = min(span, rules.lasting[job])
    gain = new_rate * max(0.0, span - new_pause) - old_rate * max(0.0, span - old_pause)
    if span < rest:
        gain -= old_rate * way_back
    return bool(gain > rules.minimum_gain)


@leaf
def _next_levels(jobs: JobArrays, job: int, held: int) -> tuple[int, int]:
    """The next level above the planned ``held`` GPUs, and the job's present level if it is higher still.

    Each is -1 if there is none. A return to the present level costs no pause, so it is tried in one step.
    """
    following = NO_TARGET
    present = NO_TARGET
    for level in range(jobs.level_count[job]):
        gpus = jobs.levels[job, level]
        if gpus > held:
            if following == NO_TARGET:
                following = gpus
            elif gpus == jobs.gpus[job] and jobs.pause[job, level] > 0.0:
                present = gpus
    return following, present


class Growing(NamedTuple):
    """Jobs that may grow in the next slot. All arrays but ``rows`` are by row of the problem."""

    #: Rows of the jobs that may grow.
    rows: IntArray
    #: True for a job with a promise.
    promised: BoolArray
    #: When the last iteration must end, in seconds from now; infinity without a promise.
    due: FloatArray
    #: Position of each row by deadline, submission and id; breaks ties.
    rank: IntArray
    #: Order in which jobs without a promise and without GPUs get their first level, before all other grants.
    start_order: IntArray


@leaf
def _best_step(
    jobs: JobArrays,
    plans: Plans,
    job: int,
    growing: Growing,
    left: int,
    timeline: Timeline,
    rules: GrowthRules,
    tried: Draft,
    best_draft: Draft,
) -> tuple[int, int, float, int, float, float]:
    """The step, of at most ``left`` GPUs, that saves the most GPU time per extra GPU for one job.

    The new plan is written to ``best_draft``. The function gives the job's own plan back and takes it again,
    so the timeline needs room for two more pieces per piece of that plan. Returns (pieces of the timeline;
    the new level or NO_TARGET; GPU seconds saved per extra GPU; pieces, finish and GPU seconds of the plan).
    """
    tried_time, tried_gpus = tried
    best_time, best_gpus = best_draft
    promised = growing.promised[job]
    due = growing.due[job]
    held = planned_gpus(plans, job, rules.slots.origin)
    following, present = _next_levels(jobs, job, held)
    best = NO_TARGET
    best_saved = 0.0
    best_pieces = 0
    best_finish = inf
    best_gpu_time = 0.0
    if following == NO_TARGET or following - held > left:
        return timeline.pieces, best, best_saved, best_pieces, best_finish, best_gpu_time
    highest = ALL_LEVELS if promised else LOWEST_LEVEL
    times, free, count = timeline
    count = occupy_in_room(timeline, plans, job, GIVE_BACK, promised)
    timeline = Timeline(times, free, count)
    # Not simply ``held + left``: a stored plan may give GPUs back before the slot ends.
    room = free_until(timeline, rules.slots.origin + rules.slots.seconds)
    for step in range(2):
        target = following if step == 0 else present
        if target == NO_TARGET or target - held > left or target > room:
            continue
        if not pays(jobs, job, held, target, timeline, rules):
            continue
        terms = Terms(promised, rules.suffix, target, highest, 0.0)
        pieces, finish, gpu_time = fill(jobs, job, due, timeline, rules.slots, terms, tried)
        saved = round((plans.gpu_time[job] - gpu_time) / (target - held) * 1e9) / 1e9
        if pieces > 0 and (best == NO_TARGET or saved > best_saved):
            best = target
            best_saved = saved
            best_pieces = pieces
            best_finish = finish
            best_gpu_time = gpu_time
            for piece in range(pieces):
                best_time[piece] = tried_time[piece]
                best_gpus[piece] = tried_gpus[piece]
    count = occupy_in_room(timeline, plans, job, TAKE, promised)
    return count, best, best_saved, best_pieces, best_finish, best_gpu_time


class BeforeGrants(NamedTuple):
    """The plans and the free capacity before Algorithm 2 grants GPUs."""

    #: Plans by row of the problem.
    plans: Plans
    #: Free capacity beside the promises and all other plans made so far.
    timeline: Timeline
    #: By row: True for a promise.
    promised: BoolArray
    #: By row: when the last iteration must end after grants, in seconds from now; infinity without a promise.
    due: FloatArray


@kernel
def before_grants(
    base: Plans,
    promised_rows: IntArray,
    others: IntArray,
    locked: BoolArray,
    due: FloatArray,
    slack_seconds: FloatArray,
    opened: Timeline,
) -> BeforeGrants:
    """Copy the plans ``base``, and take the promised ones out of the free capacity ``opened``.

    Promised jobs, locked jobs and the ``others``, which are planned next, keep their plans. Every other plan
    is dropped: it may name GPUs of servers that are gone. A plan that ends before its failure slack
    (``slack_seconds``) must still do so after a grant.
    """
    plans = plans_copied(base)
    timeline = occupied(opened, plans, promised_rows, YES)
    promised = np.zeros(due.size, dtype=np.bool_)
    promised[promised_rows] = True
    kept = promised | locked
    kept[others] = True
    latest = np.full(due.size, inf)
    for row in range(due.size):
        if not kept[row]:
            plans.length[row] = 0
        if promised[row]:
            careful = due[row] - slack_seconds[row]
            latest[row] = careful if plans.finish[row] <= careful + TIME_TOLERANCE else due[row]
    return BeforeGrants(plans, timeline, promised, latest)


@kernel
def granted_and_held(
    jobs: JobArrays,
    before: BeforeGrants,
    growing: Growing,
    rules: GrowthRules,
    most_grants: int,
    rows: IntArray,
    offers: IntArray,
    hold: bool,
) -> tuple[Plans, int]:
    """Run `grant_leftover`; with ``hold``, let ``rows`` keep their GPUs until the next change (`hold_until`).

    ``offers``: rows of held offers, whose plans also count as changes. Returns (plans, number of grants).
    """
    plans, granted = grant_leftover(jobs, before.plans, growing, before.timeline, rules, most_grants)
    wake = min(next_wake(jobs, plans, rows, rules.slots), next_wake(jobs, plans, offers, rules.slots))
    if hold and wake < inf:
        hold_until(jobs, plans, rows, wake, rules.slots)
    return plans, len(granted)


class BesideGrants(NamedTuple):
    """What grants are made beside, where there is no work without a promise. Arrays are by row but two."""

    #: Rows of the promises, held offers included.
    promised_rows: IntArray
    #: When the last iteration must end, in seconds from now.
    due: FloatArray
    #: Slack that a new promise keeps, in seconds.
    slack_seconds: FloatArray
    #: Free capacity before any plan.
    opened: Timeline
    #: Position by deadline, submission and id.
    rank: IntArray
    #: Rows of the held offers.
    offers: IntArray


@kernel
def granted_beside_promises(
    jobs: JobArrays,
    base: Plans,
    beside: BesideGrants,
    growing_rows: IntArray,
    rules: GrowthRules,
    most_grants: int,
    rows: IntArray,
    hold: bool,
) -> tuple[Plans, int, int]:
    """`before_grants` and `granted_and_held` at once.

    Returns (plans, number of grants, pieces of the timeline before them).
    """
    others = beside.offers[:0]
    before = before_grants(
        base, beside.promised_rows, others, jobs.locked, beside.due, beside.slack_seconds, beside.opened
    )
    pieces = before.timeline.pieces
    start_order = np.zeros(beside.due.size, dtype=np.int64)
    growing = Growing(growing_rows, before.promised, before.due, beside.rank, start_order)
    plans, granted = granted_and_held(jobs, before, growing, rules, most_grants, rows, beside.offers, hold)
    return plans, granted, pieces


@kernel
def grant_leftover(
    jobs: JobArrays, plans: Plans, growing: Growing, timeline: Timeline, rules: GrowthRules, most_grants: int
) -> tuple[Plans, list[int]]:
    """Algorithm 2: grant the GPUs that are free in the next slot, one level at a time.

    At most ``most_grants`` grants are made. Returns (plans, the job of each grant).

    Priorities in the heap are optimistic or outdated. The priority of the top job is computed again, and the
    job gets its grant only if it stays on top.
    """
    promised = growing.promised
    rank = growing.rank
    start_order = growing.start_order
    origin = rules.slots.origin
    left = free_until(timeline, origin + rules.slots.seconds)
    granted = [0 for _ in range(0)]
    if left == 0:
        return plans, granted
    job_of_rank = np.empty(rank.size, dtype=np.int64)
    for job in range(rank.size):
        job_of_rank[rank[job]] = job
    heap = [
        (STARTING, -inf, rank[job])
        for job in growing.rows
        if plans.length[job] > 0 and jobs.finished_at[job] == inf
    ]
    heapq.heapify(heap)
    compacted = timeline.pieces
    room = 2 * timeline.pieces + 16
    tried = new_draft(room)
    best_draft = new_draft(room)
    while left > 0 and len(heap) > 0 and len(granted) < most_grants:
        _, _, position = heapq.heappop(heap)
        job = job_of_rank[position]
        if room < timeline.pieces + 2 * plans.length[job] + 16:
            room = 2 * (timeline.pieces + 2 * plans.length[job]) + 16
            tried = new_draft(room)
            best_draft = new_draft(room)
        times, free, _ = timeline = with_room(timeline, 2 * plans.length[job])
        count, target, saved, pieces, finish, gpu_time = _best_step(
            jobs, plans, job, growing, left, timeline, rules, tried, best_draft
        )
        timeline = Timeline(times, free, count)
        if target == NO_TARGET:
            continue  # free GPUs only get fewer, so this job gets no further grant in this round
        held = planned_gpus(plans, job, origin)
        entry = (GROWING, -saved, position)
        if held == 0 and not promised[job]:
            entry = (STARTING, float(start_order[job]), position)
        if len(heap) > 0 and entry > heap[0]:
            heapq.heappush(heap, entry)
            continue
        timeline = occupy(timeline, plans, job, GIVE_BACK, promised[job])
        plans = set_plan(plans, job, best_draft, pieces, finish, gpu_time)
        timeline = occupy(timeline, plans, job, TAKE, promised[job])
        left -= target - held
        granted.append(job)
        if timeline.pieces > 2 * compacted:
            timeline = compact(timeline)
            compacted = max(timeline.pieces, 64)
        heapq.heappush(heap, (STARTING, -inf, position))
    return plans, granted
