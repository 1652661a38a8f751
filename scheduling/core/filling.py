"""Progressive filling: the least share of GPUs that meets a deadline.

ElasticFlow section 4.1, Algorithm 1 (ProgressiveFilling); spec 2.4. Uniform filling gives every
piece of the horizon the same level cap; suffix filling keeps early pieces one level lower for as
long as the deadline allows. Every change of level inside a plan carries its pause (contracts 4):
without pauses both are exactly the paper's.
"""

from __future__ import annotations

from math import ceil, inf

from scheduling.core.arrays import TIME_TOLERANCE
from scheduling.core.compiling import kernel
from scheduling.core.timeline import capacity, piece_at

NO_HEAD = -1
ALL_LEVELS = -1


@kernel
def slot_end(at, origin, slot):  # type: ignore[no-untyped-def]
    """The first slot boundary at or after ``at``."""
    if at <= origin + TIME_TOLERANCE:
        return origin
    return origin + ceil((at - origin - TIME_TOLERANCE) / slot) * slot


@kernel
def _run_end(times, free, count, guarded, piece, gpus):  # type: ignore[no-untyped-def]
    """Until when, from ``piece`` on, at least ``gpus`` GPUs stay free."""
    for later in range(piece + 1, count):
        if capacity(free, later, guarded) < gpus:
            return times[later]
    return inf


@kernel
def _walk(  # type: ignore[no-untyped-def]
    jobs, job, due, times, free, count, guarded, begin, origin, slot, switch_at, low, high,
    work, held, pause_left, carry, gpu_time, pieces, out_time, out_gpus,
):  # fmt: skip
    """Walk forward from ``begin`` with level cap ``low`` before ``switch_at`` and ``high`` after.

    Returns (pieces written, finish, GPU seconds); pieces is 0 when the work is not done by ``due``
    or the GPUs cannot be held until the final weights are stored.
    """
    levels = jobs.levels[job]
    throughput = jobs.throughput[job]
    pause = jobs.pause[job]
    held_index = -1
    for index in range(jobs.level_count[job]):
        if levels[index] == held:
            held_index = index
    run_gpus = -1
    run_until = -inf
    at = begin
    piece = piece_at(times, count, begin)
    while piece < count and at < due:
        end = times[piece + 1] if piece + 1 < count else inf
        cap = high
        if at < switch_at - TIME_TOLERANCE:
            cap = low
            end = min(end, switch_at)
        available = capacity(free, piece, guarded)
        index = cap
        while index >= 0 and levels[index] > available:
            index -= 1
        wanted = levels[index] if index >= 0 else 0
        if wanted > held and pause[index] > 0.0:
            # Growing costs a pause: stay where the GPUs would be lost again before it pays.
            if run_gpus != wanted or at >= run_until:
                run_gpus = wanted
                run_until = _run_end(times, free, count, guarded, piece, wanted)
            run = min(run_until, due) - at
            stay_rate = throughput[held_index] if held_index >= 0 else 0.0
            if throughput[index] * (run - pause[index]) <= stay_rate * run and (held == 0 or held_index >= 0):
                wanted = held
                index = held_index
        if wanted != held:
            pause_left = max(pause_left, pause[index]) if wanted > 0 else 0.0
            held = wanted
            held_index = index
        if held > 0 and carry > 0.0:
            pause_left += carry
            carry = 0.0
        if pieces == 0 or out_gpus[pieces - 1] != held:
            out_time[pieces] = at
            out_gpus[pieces] = held
            pieces += 1
        if held > 0:
            rate = throughput[held_index]
            stop = min(end, due)
            productive = stop - at - pause_left
            if (productive + TIME_TOLERANCE) * rate >= work:
                finish = at + pause_left + work / rate
                release = slot_end(finish + jobs.finishing[job], origin, slot)
                later = piece + 1
                while later < count and times[later] < release - TIME_TOLERANCE:
                    if capacity(free, later, guarded) < held:
                        return 0, inf, 0.0
                    later += 1
                out_time[pieces] = release
                out_gpus[pieces] = 0
                return pieces + 1, finish, gpu_time + held * (finish - at)
            gpu_time += held * (stop - at)
            if productive > 0.0:
                work -= productive * rate
                pause_left = 0.0
            else:
                pause_left -= stop - at
        at = end
        if piece + 1 < count and end >= times[piece + 1]:
            piece += 1
        elif end == inf:
            break
    return 0, inf, 0.0


@kernel
def _storing_only(jobs, job, due, origin, slot, out_time, out_gpus):  # type: ignore[no-untyped-def]
    """Plan of a job whose iterations end in the frozen head: hold the GPUs until all is stored."""
    finish = jobs.finished_at[job]
    if finish > due + TIME_TOLERANCE:
        return 0, inf, 0.0
    release = slot_end(finish + jobs.finishing[job], origin, slot)
    out_time[0] = origin
    out_gpus[0] = 0
    if release <= origin + TIME_TOLERANCE or jobs.gpus[job] == 0:
        return 1, finish, 0.0
    out_gpus[0] = jobs.gpus[job]
    out_time[1] = release
    out_gpus[1] = 0
    return 2, finish, 0.0


@kernel
def fill(  # type: ignore[no-untyped-def]
    jobs, job, due, times, free, count, guarded, origin, slot, head, highest, suffix, carry,
    out_time, out_gpus,
):  # fmt: skip
    """Plan one job on free capacity that excludes its own plan.

    ``due``: the last iteration must end by then. ``head``: GPU count fixed for the first slot, or
    NO_HEAD. ``highest``: index of the highest level allowed, or ALL_LEVELS. ``carry``: further
    seconds of pause that the plan must be able to absorb. A locked job keeps its GPUs in the first
    slot. Returns (pieces, finish, GPU seconds),
    0 pieces when the deadline cannot be met. ``out_time`` and ``out_gpus`` need ``count`` + 8 room.
    """
    if jobs.finished_at[job] < inf:
        return _storing_only(jobs, job, due, origin, slot, out_time, out_gpus)
    work = jobs.work[job]
    held = jobs.gpus[job]
    pause_left = jobs.pause_left[job]
    begin = origin
    pieces = 0
    gpu_time = 0.0
    if jobs.locked[job]:
        head = held
    elif jobs.earliest[job] > origin + TIME_TOLERANCE:
        begin = jobs.earliest[job]
        out_time[0] = origin
        out_gpus[0] = 0
        pieces = 1
    if head != NO_HEAD:
        index = -1
        for level in range(jobs.level_count[job]):
            if jobs.levels[job, level] == head:
                index = level
        if head > 0 and index < 0 and head != held:
            return 0, inf, 0.0
        if head != held:
            pause_left = max(pause_left, jobs.pause[job, index]) if head > 0 else 0.0
            held = head
        begin = origin + slot
        out_time[0] = origin
        out_gpus[0] = head
        pieces = 1
        if head > 0:
            pause_left += carry
            carry = 0.0
            rate = jobs.throughput[job, index] if index >= 0 else 0.0
            stop = min(begin, due)
            productive = stop - origin - pause_left
            if rate > 0.0 and (productive + TIME_TOLERANCE) * rate >= work:
                finish = origin + pause_left + work / rate
                release = slot_end(finish + jobs.finishing[job], origin, slot)
                later = piece_at(times, count, origin) + 1
                while later < count and times[later] < release - TIME_TOLERANCE:
                    if times[later] >= begin - TIME_TOLERANCE and capacity(free, later, guarded) < head:
                        return 0, inf, 0.0
                    later += 1
                out_time[1] = release
                out_gpus[1] = 0
                return 2, finish, head * (finish - origin)
            gpu_time = head * (stop - origin)
            if productive > 0.0:
                work -= productive * rate
                pause_left = 0.0
            else:
                pause_left -= stop - origin
    top = jobs.level_count[job] - 1
    if highest != ALL_LEVELS:
        top = min(top, highest)
    for level in range(top + 1):
        if due < inf and jobs.throughput[job, level] * (due - begin + TIME_TOLERANCE) < work:
            continue
        written, finish, used = _walk(
            jobs, job, due, times, free, count, guarded, begin, origin, slot, -inf, -1, level,
            work, held, pause_left, carry, gpu_time, pieces, out_time, out_gpus,
        )  # fmt: skip
        if written == 0:
            continue
        if not suffix or due == inf:
            return written, finish, used
        return _latest_switch(
            jobs, job, due, times, free, count, guarded, begin, origin, slot, level,
            work, held, pause_left, carry, gpu_time, pieces, out_time, out_gpus,
        )  # fmt: skip
    return 0, inf, 0.0


@kernel
def _latest_switch(  # type: ignore[no-untyped-def]
    jobs, job, due, times, free, count, guarded, begin, origin, slot, level,
    work, held, pause_left, carry, gpu_time, pieces, out_time, out_gpus,
):  # fmt: skip
    """Suffix filling: the latest slot at which going up to ``level`` still meets the deadline."""
    sure = 0
    failing = ceil((due - begin) / slot)
    while failing - sure > 1:
        middle = (sure + failing) // 2
        written, _, _ = _walk(
            jobs, job, due, times, free, count, guarded, begin, origin, slot,
            begin + middle * slot, level - 1, level,
            work, held, pause_left, carry, gpu_time, pieces, out_time, out_gpus,
        )  # fmt: skip
        if written > 0:
            sure = middle
        else:
            failing = middle
    return _walk(
        jobs, job, due, times, free, count, guarded, begin, origin, slot,
        begin + sure * slot, level - 1, level,
        work, held, pause_left, carry, gpu_time, pieces, out_time, out_gpus,
    )  # fmt: skip


@kernel
def earliest_finish(  # type: ignore[no-untyped-def]
    jobs, job, times, free, count, guarded, origin, slot, out_time, out_gpus
):  # fmt: skip
    """The earliest end of the last iteration over all level caps, on free capacity as it is."""
    best = inf
    for level in range(jobs.level_count[job]):
        written, finish, _ = _walk(
            jobs, job, inf, times, free, count, guarded, max(origin, jobs.earliest[job]), origin, slot,
            -inf, -1, level, jobs.work[job], jobs.gpus[job], jobs.pause_left[job], 0.0, 0.0, 0,
            out_time, out_gpus,
        )  # fmt: skip
        if written > 0 and finish < best:
            best = finish
    return best
