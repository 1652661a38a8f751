"""Elastic allocation: Algorithm 2 of ElasticFlow (section 4.2; spec 2.6 and 2.7).

Best effort, and all other work without a promise, is first filled at its lowest level, shortest first. Then
GPUs still free in the next slot are granted one level at a time to the job that saves the most GPU time per
GPU.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import NamedTuple

import numpy as np

from scheduling.core.elasticflow.first_growth import GrowthRules
from scheduling.core.elasticflow.holding import hold_until, next_wake
from scheduling.core.elasticflow.minimum_satisfactory_share import ALL_LEVELS, Terms, fill
from scheduling.core.kernels import NO, YES, kernel, leaf, whole
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
    """Plan jobs without a promise at their lowest level on what is left, in the given order.

    ``heads``: GPUs per row fixed for the next slot, or NO_HEAD. A job for which nothing is ever left
    gets no plan. Returns (plans, timeline).
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
    slots: Slots,
    minimum_gain: float,
) -> bool:
    """Whether going from level ``old`` to ``new`` wins more iterations than its pause costs.

    Counted for as long as the forecast leaves ``new`` GPUs free for the job (spec 2.10).
    """
    old_rate = 0.0
    old_pause = 0.0
    new_rate = 0.0
    new_pause = 0.0
    for level in range(jobs.level_count[job]):
        if jobs.levels[job, level] == old:
            old_rate = jobs.throughput[job, level]
            old_pause = jobs.pause[job, level] if old != jobs.gpus[job] else 0.0
        if jobs.levels[job, level] == new:
            new_rate = jobs.throughput[job, level]
            new_pause = jobs.pause[job, level] if new != jobs.gpus[job] else 0.0
    times, free, count = timeline
    origin = slots.origin
    slot = slots.seconds
    span = new_pause + jobs.work[job] / new_rate
    piece = piece_at(times, count, origin + slot)
    while piece < count and times[piece] < origin + span:
        if free[0, piece] < new:
            span = max(slot, times[piece] - origin)
            break
        piece += 1
    gain = new_rate * max(0.0, span - new_pause) - old_rate * max(0.0, span - old_pause)
    return bool(gain > minimum_gain)


@leaf
def _next_levels(jobs: JobArrays, job: int, held: int) -> tuple[int, int]:
    """The next level above ``held``, and the level held now if that is higher still, else -1.

    Returning to the level held now costs no pause, so it is worth trying in one step.
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
    """Jobs that may grow in the next slot: the ``rows`` that ask. The other columns are by row, for all jobs.

    ``promised``, and when the last iteration must end by ``due``. ``rank``: tie order (deadline, submission,
    id), dense. ``start_order``: order in which jobs without a promise and without GPUs come first for their
    first level.
    """

    rows: IntArray
    promised: BoolArray
    due: FloatArray
    rank: IntArray
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
    """The better of the steps open to a job that ``left`` GPUs allow.

    The job's own plan is given back meanwhile, for which the timeline must have room; the new one is left in
    ``best_draft``. Returns (pieces of the timeline, target, GPU time saved per extra GPU, pieces, finish, GPU
    time).
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
    # Not ``held`` more than ``left``: a stored plan may give GPUs back before the slot ends.
    room = free_until(timeline, rules.slots.origin + rules.slots.seconds)
    for step in range(2):
        target = following if step == 0 else present
        if target == NO_TARGET or target - held > left or target > room:
            continue
        if not pays(jobs, job, held, target, timeline, rules.slots, rules.minimum_gain):
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


class LaidOut(NamedTuple):
    """Plans that keep the promises, what these leave free, and by row who is promised and until when grants
    let the last iteration end: never without a promise."""

    plans: Plans
    timeline: Timeline
    promised: BoolArray
    due: FloatArray


@kernel
def laid_out(
    base: Plans,
    promised_rows: IntArray,
    others: IntArray,
    locked: BoolArray,
    due: FloatArray,
    slack_seconds: float,
    opened: Timeline,
) -> LaidOut:
    """A copy of the plans ``base`` before anybody else gets anything.

    Only promised and locked jobs, and the ``others`` that wait to be planned, keep a plan: stored plans of
    jobs that no server is left for speak of GPUs that are gone. Grants keep the failure slack of a plan that
    has it.
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
            careful = due[row] - slack_seconds
            latest[row] = careful if plans.finish[row] <= careful + TIME_TOLERANCE else due[row]
    return LaidOut(plans, timeline, promised, latest)


@kernel
def granted_and_held(
    jobs: JobArrays,
    laid: LaidOut,
    growing: Growing,
    rules: GrowthRules,
    most_grants: int,
    rows: IntArray,
    offers: IntArray,
    hold: bool,
) -> tuple[Plans, int]:
    """The plans with the grants of `grant_leftover`, those of ``rows`` held until a plan takes more GPUs or
    ends, an offer's included. Returns them and the number of grants."""
    plans, granted = grant_leftover(jobs, laid.plans, growing, laid.timeline, rules, most_grants)
    wake = min(next_wake(jobs, plans, rows, rules.slots), next_wake(jobs, plans, offers, rules.slots))
    if hold and wake < inf:
        hold_until(jobs, plans, rows, wake, rules.slots)
    return plans, len(granted)


@kernel
def grant_leftover(
    jobs: JobArrays, plans: Plans, growing: Growing, timeline: Timeline, rules: GrowthRules, most_grants: int
) -> tuple[Plans, list[int]]:
    """Algorithm 2: give the next slot's free GPUs away, level by level.

    At most ``most_grants`` grants are made. Returns (plans, granted job per grant).

    The heap holds optimistic or outdated priorities: what is on top is computed afresh, and granted
    only if it is still on top then.
    """
    promised = growing.promised
    rank = growing.rank
    start_order = growing.start_order
    origin = rules.slots.origin
    job_of_rank = np.empty(rank.size, dtype=np.int64)
    for job in range(rank.size):
        job_of_rank[rank[job]] = job
    left = free_until(timeline, origin + rules.slots.seconds)
    granted = [0 for _ in range(0)]
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
            continue  # GPUs left only get fewer: never again in this round
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
