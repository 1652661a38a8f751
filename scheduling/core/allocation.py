"""Elastic allocation: Algorithm 2 of ElasticFlow (section 4.2; spec 2.6 and 2.7).

Work without a promise is first filled at its lowest level, shortest first. Then GPUs still free in
the next slot are granted one level at a time to the job that saves the most GPU time per GPU.
"""

from __future__ import annotations

import heapq
from math import inf

import numpy as np

from scheduling.core.arrays import TIME_TOLERANCE, planned_gpus, set_plan
from scheduling.core.compiling import kernel
from scheduling.core.filling import ALL_LEVELS, NO_HEAD, fill
from scheduling.core.timeline import compact, occupy, piece_at

LOWEST_LEVEL = 0
STARTING = -1
GROWING = 0
NO_CANDIDATE = -1


@kernel
def fill_unpromised(  # type: ignore[no-untyped-def]
    jobs, plans, order, times, free, count, origin, slot
):  # fmt: skip
    """Plan jobs without a promise at their lowest level on what is left, in the given order.

    A job for which nothing is ever left gets no plan. Returns (plans, timeline).
    """
    piece_time = np.zeros(count + 8)
    piece_gpus = np.zeros(count + 8, dtype=np.int64)
    for job in order:
        if piece_time.size < count + 8:
            piece_time = np.zeros(2 * count + 8)
            piece_gpus = np.zeros(2 * count + 8, dtype=np.int64)
        pieces, finish, gpu_time = fill(
            jobs, job, inf, times, free, count, False, origin, slot, NO_HEAD, LOWEST_LEVEL, False, 0.0,
            piece_time, piece_gpus,
        )  # fmt: skip
        plans.count[job] = 0
        if pieces > 0:
            plans = set_plan(plans, job, piece_time, piece_gpus, pieces, finish, gpu_time)
            times, free, count = occupy(times, free, count, plans, job, 1, False)
    return plans, times, free, count


@kernel
def _pays(jobs, job, old, new, times, free, count, origin, slot, minimum_gain):  # type: ignore[no-untyped-def]
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
    span = new_pause + jobs.work[job] / new_rate
    piece = piece_at(times, count, origin + slot)
    while piece < count and times[piece] < origin + span:
        if free[0, piece] < new:
            span = max(slot, times[piece] - origin)
            break
        piece += 1
    gain = new_rate * max(0.0, span - new_pause) - old_rate * max(0.0, span - old_pause)
    return gain > minimum_gain


@kernel
def _candidate(  # type: ignore[no-untyped-def]
    jobs, plans, job, promised, due, target, times, free, count, origin, slot, suffix, minimum_gain,
    piece_time, piece_gpus,
):  # fmt: skip
    """Plan of one job with ``target`` GPUs in the next slot, own plan given back meanwhile.

    Returns (pieces, finish, GPU time, GPU time saved per extra GPU); 0 pieces: not to be granted.
    """
    held = planned_gpus(plans, job, origin)
    times, free, count = occupy(times, free, count, plans, job, -1, promised)
    pieces = 0
    finish = inf
    gpu_time = 0.0
    if _pays(jobs, job, held, target, times, free, count, origin, slot, minimum_gain):
        highest = ALL_LEVELS if promised else LOWEST_LEVEL
        pieces, finish, gpu_time = fill(
            jobs, job, due, times, free, count, promised, origin, slot, target, highest, suffix, 0.0,
            piece_time, piece_gpus,
        )  # fmt: skip
    times, free, count = occupy(times, free, count, plans, job, 1, promised)
    saved = (plans.gpu_time[job] - gpu_time) / (target - held)
    return pieces, finish, gpu_time, round(saved * 1e9) / 1e9


@kernel
def _next_levels(jobs, job, held):  # type: ignore[no-untyped-def]
    """The next level above ``held``, and the level held now if that is higher still, else -1.

    Returning to the level held now costs no pause, so it is worth trying in one step.
    """
    following = NO_CANDIDATE
    present = NO_CANDIDATE
    for level in range(jobs.level_count[job]):
        gpus = jobs.levels[job, level]
        if gpus > held:
            if following == NO_CANDIDATE:
                following = gpus
            elif gpus == jobs.gpus[job] and jobs.pause[job, level] > 0.0:
                present = gpus
    return following, present


@kernel
def _best_candidate(  # type: ignore[no-untyped-def]
    jobs, plans, job, promised, due, left, times, free, count, origin, slot, suffix, minimum_gain,
    piece_time, piece_gpus,
):  # fmt: skip
    """The better of the steps open to a job that ``left`` GPUs allow. Returns (target, saved)."""
    held = planned_gpus(plans, job, origin)
    best = NO_CANDIDATE
    best_saved = 0.0
    for target in _next_levels(jobs, job, held):
        if target == NO_CANDIDATE or target - held > left:
            continue
        pieces, _, _, saved = _candidate(
            jobs, plans, job, promised, due, target, times, free, count, origin, slot, suffix,
            minimum_gain, piece_time, piece_gpus,
        )  # fmt: skip
        if pieces > 0 and (best == NO_CANDIDATE or saved > best_saved):
            best = target
            best_saved = saved
    return best, best_saved


@kernel
def grant_leftover(  # type: ignore[no-untyped-def]
    jobs, plans, rows, promised, due, rank, start_order, times, free, count, origin, slot, suffix,
    minimum_gain, most_grants,
):  # fmt: skip
    """Algorithm 2: give the next slot's free GPUs away, level by level.

    ``rank``: tie order (deadline, submission, id) as a dense ranking of all rows; ``start_order``:
    order in which unpromised jobs without GPUs come first for their first level. At most
    ``most_grants`` grants are made. Returns (plans, granted job per grant).
    """
    job_of_rank = np.empty(rank.size, dtype=np.int64)
    for job in range(rank.size):
        job_of_rank[rank[job]] = job
    left = 1 << 60
    piece = 0
    while piece < count and times[piece] < origin + slot - TIME_TOLERANCE:
        left = min(left, free[0, piece])
        piece += 1
    version = np.zeros(jobs.work.size, dtype=np.int64)
    granted = [0 for _ in range(0)]
    heap = [(0, 0.0, 0, 0, 0) for _ in range(0)]
    grants = 0
    compacted = count
    piece_time = np.zeros(2 * count + 16)
    piece_gpus = np.zeros(2 * count + 16, dtype=np.int64)
    if left > 0:
        for job in rows:
            if plans.count[job] == 0 or jobs.finished_at[job] < inf:
                continue
            target, saved = _best_candidate(
                jobs, plans, job, promised[job], due[job], left, times, free, count, origin, slot, suffix,
                minimum_gain, piece_time, piece_gpus,
            )  # fmt: skip
            if target != NO_CANDIDATE:
                starting = not promised[job] and planned_gpus(plans, job, origin) == 0
                urgency = STARTING if starting else GROWING
                order = float(start_order[job]) if starting else -saved
                heapq.heappush(heap, (urgency, order, rank[job], grants, target))
    while left > 0 and len(heap) > 0 and grants < most_grants:
        urgency, order, position, stamp, target = heapq.heappop(heap)
        job = job_of_rank[position]
        held = planned_gpus(plans, job, origin)
        if stamp != grants or target - held > left:
            target, saved = _best_candidate(
                jobs, plans, job, promised[job], due[job], left, times, free, count, origin, slot, suffix,
                minimum_gain, piece_time, piece_gpus,
            )  # fmt: skip
            if target == NO_CANDIDATE:
                continue
            if urgency == GROWING:
                order = -saved
            if len(heap) > 0 and (urgency, order, position) > heap[0][:3]:
                heapq.heappush(heap, (urgency, order, position, grants, target))
                continue
        pieces, finish, gpu_time, _ = _candidate(
            jobs, plans, job, promised[job], due[job], target, times, free, count, origin, slot, suffix,
            minimum_gain, piece_time, piece_gpus,
        )  # fmt: skip
        times, free, count = occupy(times, free, count, plans, job, -1, promised[job])
        plans = set_plan(plans, job, piece_time, piece_gpus, pieces, finish, gpu_time)
        times, free, count = occupy(times, free, count, plans, job, 1, promised[job])
        left -= target - held
        grants += 1
        granted.append(job)
        if count > 2 * compacted:
            count = compact(times, free, count)
            compacted = max(count, 64)
        if piece_time.size < count + 8:
            piece_time = np.zeros(2 * count + 16)
            piece_gpus = np.zeros(2 * count + 16, dtype=np.int64)
        if left <= 0:
            break
        target, saved = _best_candidate(
            jobs, plans, job, promised[job], due[job], left, times, free, count, origin, slot, suffix,
            minimum_gain, piece_time, piece_gpus,
        )  # fmt: skip
        if target != NO_CANDIDATE:
            heapq.heappush(heap, (GROWING, -saved, rank[job], grants, target))
    return plans, granted
