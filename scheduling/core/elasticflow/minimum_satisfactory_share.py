"""Progressive filling: the minimum satisfactory share, the least GPUs that meet a deadline.

ElasticFlow section 4.1, Algorithm 1 (ProgressiveFilling). Uniform filling caps every piece of the
plan at the same level. Suffix filling caps early pieces one level lower, as long as the deadline allows.
Every change of level inside a plan costs its pause. Without pauses both variants are exactly
the paper's.
"""

from __future__ import annotations

from math import ceil, inf
from typing import NamedTuple

from kernels.compiling import ZERO, leaf, whole
from scheduling.core.plans.slots import Slots, slot_end
from scheduling.core.plans.timeline import Timeline, free_for, piece_at
from scheduling.core.question.arrays import TIME_TOLERANCE, Draft, JobArrays
from scheduling.core.question.snapshot import FloatArray, IntArray

NO_HEAD = whole(-1)
ALL_LEVELS = whole(-1)
NO_GPUS = whole(0)
WITHOUT_SWITCH = -inf
NO_LEVEL_BEFORE = whole(-1)
MOST_GUESSES = 2
"""Guesses in a row of the slot in which suffix filling rises, before one step of bisection."""


class Terms(NamedTuple):
    """How a job is filled."""

    #: True for a new promise: it leaves the failure reserve free.
    guarded: bool
    #: True for the suffix variant of filling, False for the uniform one.
    suffix: bool
    #: GPUs fixed for the next slot, or NO_HEAD.
    head: int = NO_HEAD
    #: Column of the highest level allowed, or ALL_LEVELS.
    highest: int = ALL_LEVELS
    #: Extra seconds of pauses that the plan must absorb.
    carry: float = 0.0


class Capacity(NamedTuple):
    """The free capacity for one kind of work: a `Timeline` and whether the failure reserve counts."""

    #: Beginnings of the pieces, in seconds from now.
    times: FloatArray
    #: Free GPUs, in the two rows of `Timeline`.
    free: IntArray
    #: Number of pieces in use.
    pieces: int
    #: True for a new promise: the failure reserve is not free for it.
    guarded: bool


class Head(NamedTuple):
    """The fixed beginning of a plan, whatever is free."""

    #: GPUs that the job holds, or NO_HEAD.
    gpus: int
    #: End of the head, in seconds from now.
    until: float


class LevelCap(NamedTuple):
    """The highest level that a plan may use."""

    #: Column of the cap before ``switch_at``; -1 for no GPUs.
    low: int
    #: Column of the cap from ``switch_at`` on.
    high: int
    #: When the cap rises, in seconds from now.
    switch_at: float


@leaf
def _column(jobs: JobArrays, job: int, gpus: int) -> int:
    """Column of level ``gpus`` in the job's curve, or -1."""
    for index in range(jobs.level_count[job]):
        if jobs.levels[job, index] == gpus:
            return index
    return -1


@leaf
def _fastest(throughput: FloatArray, high: int) -> float:
    """Iterations per second on the fastest level up to column ``high``."""
    rate = 0.0
    for index in range(high + 1):
        rate = max(rate, throughput[index])
    return rate


@leaf
def _run_end(capacity: Capacity, piece: int, gpus: int, due: float) -> float:
    """The first time after ``piece`` and before ``due`` at which fewer than ``gpus`` GPUs are free; infinity
    if there is none."""
    times, free, count, guarded = capacity
    for later in range(piece + 1, count):
        if times[later] >= due:
            break
        if free_for(free, later, guarded) < gpus:
            return float(times[later])
    return inf


@leaf
def _first_with_room(capacity: Capacity, piece: int, gpus: int) -> tuple[int, float]:
    """The first piece from ``piece`` on with at least ``gpus`` GPUs free, and when it begins.

    Returns (number of pieces, infinity) if there is none. In a long queue a job waits for hundreds of pieces;
    this tight loop skips them.
    """
    times, free, count, guarded = capacity
    for later in range(piece, count):
        if free_for(free, later, guarded) >= gpus:
            return later, float(times[later])
    return count, inf


@leaf
def _can_hold(capacity: Capacity, piece: int, gpus: int, begin: float, release: float) -> bool:
    """Whether ``gpus`` GPUs are free from ``begin`` to ``release`` in all pieces after ``piece``."""
    times, free, count, guarded = capacity
    later = piece + 1
    while later < count and times[later] < release - TIME_TOLERANCE:
        if times[later] >= begin - TIME_TOLERANCE and free_for(free, later, guarded) < gpus:
            return False
        later += 1
    return True


@leaf
def _next_chance(capacity: Capacity, piece: int, at: float, gpus: int, cap: LevelCap) -> tuple[int, float]:
    """Where a job that holds nothing goes on: the next piece in which it may start, and from when on.

    Before a switch from no GPUs at all nothing can happen, so the walk goes on from there. Otherwise it goes
    on in the first piece with ``gpus`` GPUs free.
    """
    times, _, count, _ = capacity
    low, _, switch_at = cap
    if low >= 0 or at >= switch_at - TIME_TOLERANCE:
        return _first_with_room(capacity, piece, gpus)
    beyond = count
    while beyond - piece > 1:
        middle = (piece + beyond) // 2
        if switch_at >= times[middle] - TIME_TOLERANCE:
            piece = middle
        else:
            beyond = middle
    return piece, switch_at


@leaf
def _worth_growing(held: int, held_rate: float, rate: float, pause: float, run: float) -> bool:
    """Whether a larger level wins more iterations than its ``pause`` costs in the ``run`` seconds it lasts.

    ``rate`` and ``held_rate``: throughput on the larger level and on the ``held`` GPUs; ``held_rate`` is
    negative if ``held`` is no level.
    """
    if held == 0:
        return run > pause
    if held_rate < 0.0 or run == inf:
        return True
    return rate * (run - pause) > held_rate * run


@leaf
def _walk(
    jobs: JobArrays,
    job: int,
    due: float,
    capacity: Capacity,
    slots: Slots,
    head: Head,
    cap: LevelCap,
    carry: float,
    draft: Draft,
) -> tuple[int, float, float]:
    """Write one plan to ``draft``: walk forward and hold in each piece the highest level that is free and
    under the cap.

    Returns (pieces written, finish, GPU seconds). Pieces is 0 if the work is not done by ``due`` or the GPUs
    cannot be held until the final weights are stored. The walk stops early when even the fastest level under
    the cap cannot finish by ``due``.
    """
    levels = jobs.levels[job]
    throughput = jobs.throughput[job]
    pauses = jobs.pause[job]
    times, free, count, guarded = capacity
    out_time, out_gpus = draft
    head_gpus, head_until = head
    low, high, switch_at = cap
    after_head = head_until - TIME_TOLERANCE
    before_switch = switch_at - TIME_TOLERANCE
    waits_until = before_switch if low < 0 else -inf
    held = jobs.gpus[job]
    held_index = _column(jobs, job, held)
    head_index = _column(jobs, job, head_gpus)
    pause_left = jobs.pause_left[job]
    work = jobs.work[job]
    fastest = _fastest(throughput, high)
    gpu_time = 0.0
    pieces = 0
    run_gpus = -1
    run_until = -inf
    at = slots.origin
    piece = piece_at(times, count, slots.origin)
    while (
        piece < count and at < due and (at < after_head or work <= fastest * (due - at + 2 * TIME_TOLERANCE))
    ):
        room = free_for(free, piece, guarded)
        if held == 0 and pieces > 0 and at >= after_head and (room < levels[0] or at < waits_until):
            piece, at = _next_chance(capacity, piece, at, levels[0], cap)
            continue
        end = times[piece + 1] if piece + 1 < count else inf
        if at < after_head:
            end = head_until
            wanted = head_gpus
            index = head_index
        else:
            early = at < before_switch
            index = low if early else high
            end = min(end, switch_at) if early else end
            while index >= 0 and levels[index] > room:
                index -= 1
            wanted = levels[index] if index >= 0 else 0
            if wanted > held and pauses[index] > 0.0:
                if run_gpus != wanted or at >= run_until:
                    run_gpus = wanted
                    run_until = _run_end(capacity, piece, wanted, due)
                held_rate = throughput[held_index] if held_index >= 0 else -1.0
                if not _worth_growing(
                    held, held_rate, throughput[index], pauses[index], min(run_until, due) - at
                ):
                    wanted = held
                    index = held_index
        if wanted != held:
            pause_left = max(pause_left, pauses[index]) if wanted > 0 else 0.0
            held = wanted
            held_index = index
        if pieces == 0 or out_gpus[pieces - 1] != held:
            out_time[pieces] = at
            out_gpus[pieces] = held
            pieces += 1
        if held > 0:
            pause_left += carry
            carry = 0.0
            rate = throughput[held_index] if held_index >= 0 else 0.0
            stop = min(end, due)
            productive = stop - at - pause_left
            if rate > 0.0 and (productive + TIME_TOLERANCE) * rate >= work:
                finish = at + pause_left + work / rate
                release = slot_end(finish + jobs.finishing[job], slots)
                if not _can_hold(capacity, piece, held, head_until, release):
                    return 0, inf, 0.0
                out_time[pieces] = release
                out_gpus[pieces] = 0
                return pieces + 1, finish, gpu_time + held * (finish - at)
            gpu_time += held * (stop - at)
            work -= max(productive, 0.0) * rate
            pause_left = max(pause_left - (stop - at), 0.0)
        at = end
        piece = count if end == inf else piece
        while piece + 1 < count and at >= times[piece + 1] - TIME_TOLERANCE:
            piece += 1
    return 0, inf, 0.0


@leaf
def _storing_only(
    jobs: JobArrays, job: int, due: float, capacity: Capacity, slots: Slots, draft: Draft
) -> tuple[int, float, float]:
    """Plan a job without iterations left: it holds GPUs until the final weights are stored.

    The job keeps its GPUs if they stay free. Otherwise it starts on its lowest level as soon as that is free.
    Returns (pieces written, finish, GPU seconds), 0 pieces if the job cannot end by ``due``.
    """
    times, free, count, guarded = capacity
    out_time, out_gpus = draft
    origin = slots.origin
    out_time[0] = origin
    out_gpus[0] = 0
    finish = jobs.finished_at[job]
    if finish + jobs.finishing[job] <= origin + TIME_TOLERANCE:
        return (1 if finish <= due + TIME_TOLERANCE else 0), finish, 0.0
    gpus = jobs.gpus[job]
    if gpus == 0:
        gpus = jobs.levels[job, 0]
        finish = origin + jobs.pause[job, 0]
    first = piece_at(times, count, origin)
    for piece in range(first, count):
        begin = max(times[piece], origin)
        if piece > first:
            gpus = jobs.levels[job, 0]
            finish = begin + jobs.pause[job, 0]
        if finish > due + TIME_TOLERANCE:
            break
        release = slot_end(finish + jobs.finishing[job], slots)
        if free_for(free, piece, guarded) < gpus and not jobs.locked[job]:
            continue
        kept_until = jobs.locked_until[job] if jobs.locked[job] else begin
        if not _can_hold(capacity, piece, gpus, max(begin, kept_until), release):
            continue
        held = 0
        if begin > origin + TIME_TOLERANCE:
            held = 1
        out_time[held] = begin
        out_gpus[held] = gpus
        out_time[held + 1] = release
        out_gpus[held + 1] = 0
        return held + 2, finish, gpus * (finish - begin)
    return 0, inf, 0.0


@leaf
def _next_slot(
    jobs: JobArrays, job: int, level: int, slot: float, slack: float, sure: int, failing: int, guesses: int
) -> tuple[int, int]:
    """The slot in which suffix filling tries to rise to ``level`` next, and the guesses made in a row.

    ``sure``: the last slot known to meet the deadline; ``failing``: the first known to miss it. ``slack``:
    seconds that the last plan left before the deadline, negative if it missed. The guess is the slot at which
    the level below would use up this slack. After `MOST_GUESSES` guesses, or a miss, the range is halved.
    """
    if failing - sure <= 1:
        return sure, guesses
    if slack < 0.0 or guesses >= MOST_GUESSES:
        return (sure + failing) // 2, 0
    lower = jobs.throughput[job, level - 1] if level > 0 else 0.0
    lost = (jobs.throughput[job, level] - lower) * slot
    further = int(min(slack * jobs.throughput[job, level] / lost, failing)) if lost > 0.0 else 0
    return min(failing - 1, sure + max(1, further)), guesses + 1


@leaf
def fill(
    jobs: JobArrays, job: int, due: float, timeline: Timeline, slots: Slots, terms: Terms, draft: Draft
) -> tuple[int, float, float]:
    """ProgressiveFilling of Algorithm 1: plan one job on the lowest level that meets its deadline.

    ``due``: when the last iteration must end, in seconds from now. ``timeline``: free capacity without the
    job's own plan. A locked job keeps its GPUs for as long as it is locked. The plan is written to ``draft``,
    which needs room for 8 pieces more than the timeline has. Returns (pieces, finish in seconds from now, GPU
    seconds), 0 pieces if the deadline cannot be met.
    """
    capacity = Capacity(timeline.times, timeline.free, timeline.pieces, terms.guarded)
    if jobs.finished_at[job] < inf:
        return _storing_only(jobs, job, due, capacity, slots, draft)
    origin = slots.origin
    slot = slots.seconds
    suffix = terms.suffix
    head = terms.head
    head_until = origin
    head_seconds = slot
    if jobs.locked[job]:
        head = jobs.gpus[job]
        head_until = jobs.locked_until[job]
        head_seconds = head_until - origin
    elif head == NO_HEAD and jobs.earliest[job] > origin:
        head = NO_GPUS
        head_until = jobs.earliest[job]
    if head != NO_HEAD and head_until == origin:
        head_until = origin + slot
    head_column = _column(jobs, job, head)
    head_work = jobs.throughput[job, head_column] * head_seconds if head_column >= 0 else 0.0
    top = jobs.level_count[job] - 1
    if terms.highest != ALL_LEVELS:
        top = min(top, terms.highest)
    level = ZERO
    switch = WITHOUT_SWITCH
    sure = -1  # suffix: last slot to rise in that meets the deadline; -1 until the level is found
    failing = 0
    next_slot = 0
    guesses = 0
    while level <= top:
        reachable = head_work + jobs.throughput[job, level] * (due - head_until + TIME_TOLERANCE)
        if sure < 0 and due < inf and reachable < jobs.work[job]:
            level += 1
            continue
        written, finish, gpu_time = _walk(
            jobs, job, due, capacity, slots, Head(head, head_until), LevelCap(level - 1, level, switch),
            terms.carry,
            draft,
        )  # fmt: skip
        if sure < 0:
            if written == 0:
                level += 1
                continue
            if not suffix or due == inf:
                return written, finish, gpu_time
            sure = 0
            failing = ceil((due - head_until) / slot)
        elif failing - sure <= 1:
            return written, finish, gpu_time
        elif written > 0:
            sure = next_slot
        else:
            failing = next_slot
        # When only one slot is left, the next walk writes its plan again.
        slack = max(0.0, due - finish) if written > 0 else -1.0
        next_slot, guesses = _next_slot(jobs, job, level, slot, slack, sure, failing, guesses)
        switch = head_until + next_slot * slot
    return 0, inf, 0.0


@leaf
def earliest_finish(
    jobs: JobArrays, job: int, timeline: Timeline, guarded: bool, slots: Slots, draft: Draft
) -> float:
    """The earliest end of the job's last iteration under any level cap, in seconds from now.

    ``guarded``: leave the failure reserve free. A locked job keeps its GPUs for as long as it is locked.
    """
    capacity = Capacity(timeline.times, timeline.free, timeline.pieces, guarded)
    best = inf
    head = NO_GPUS
    head_until = max(slots.origin, jobs.earliest[job])
    if jobs.locked[job]:
        head = jobs.gpus[job]
        head_until = jobs.locked_until[job]
    for level in range(jobs.level_count[job]):
        written, finish, _ = _walk(
            jobs, job, inf, capacity, slots, Head(head, head_until),
            LevelCap(NO_LEVEL_BEFORE, level, WITHOUT_SWITCH), 0.0, draft,
        )  # fmt: skip
        if written > 0 and finish < best:
            best = finish
    return best
