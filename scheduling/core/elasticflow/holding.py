"""Let every job keep its GPUs of the next slot until a plan needs more GPUs or a job ends.

Algorithm 2 looks one slot ahead: a plan gives its grant back after that slot, and the next decision makes
the same grant again. Holding the GPUs until the first real change avoids that. No job ends later: its drop
to a lower level only comes later, and it has done at least as many iterations by then.
"""

from __future__ import annotations

from math import inf

import numpy as np

from kernels.compiling import kernel, leaf
from scheduling.core.plans.charging import charged_finish
from scheduling.core.plans.slots import Slots, slot_end
from scheduling.core.question.arrays import TIME_TOLERANCE, JobArrays, Plans, planned_gpus
from scheduling.core.question.snapshot import FloatArray, IntArray


@leaf
def _release_when_held(jobs: JobArrays, job: int, gpus: int, slots: Slots) -> float:
    """The slot end, in seconds from now, at which the job has stored its weights if it keeps ``gpus`` GPUs
    from the next slot on; infinity if ``gpus`` is no level."""
    if jobs.finished_at[job] < inf:
        return slot_end(jobs.finished_at[job] + jobs.finishing[job], slots)
    for level in range(jobs.level_count[job]):
        if jobs.levels[job, level] == gpus:
            pause = jobs.pause_left[job]
            if gpus != jobs.gpus[job]:
                pause = max(pause, jobs.pause[job, level])
            finish = slots.origin + pause + jobs.work[job] / jobs.throughput[job, level]
            return slot_end(finish + jobs.finishing[job], slots)
    return inf


@leaf
def next_wake(jobs: JobArrays, plans: Plans, rows: IntArray, slots: Slots) -> float:
    """The first time after the next slot begins, in seconds from now, at which a plan of ``rows`` takes more
    GPUs or a job ends."""
    origin = slots.origin
    wake = inf
    for job in rows:
        count = plans.length[job]
        if count == 0:
            continue
        held = planned_gpus(plans, job, origin)
        if held > 0:
            release = _release_when_held(jobs, job, held, slots)
            if origin + TIME_TOLERANCE < release < wake:
                wake = release
        before = held
        for piece in range(count):
            at = plans.time[job, piece]
            if at >= wake:
                break
            if at > origin + TIME_TOLERANCE:
                if plans.gpus[job, piece] > before or piece == count - 1:
                    wake = at
                before = plans.gpus[job, piece]
    return wake


@kernel
def hold_until(jobs: JobArrays, plans: Plans, rows: IntArray, until: float, slots: Slots) -> None:
    """Change each plan of ``rows`` to keep its GPUs of the next slot until ``until``, in seconds from now.

    A plan that finishes earlier by that also releases its GPUs earlier. The time between finish and release
    stays the same: it is the room for pauses of forced moves.
    """
    nothing = np.zeros(0)
    for job in rows:
        _hold_job(jobs, plans, job, until, slots, nothing)


@leaf
def _hold_job(
    jobs: JobArrays, plans: Plans, job: int, until: float, slots: Slots, nothing: FloatArray
) -> None:
    """`hold_until` for one job; ``nothing`` is an empty array (no charges)."""
    origin = slots.origin
    count = plans.length[job]
    if count < 2:
        return
    held = planned_gpus(plans, job, origin)
    first_later = 0
    while first_later < count and plans.time[job, first_later] <= until + TIME_TOLERANCE:
        first_later += 1
    if first_later <= 1 or held == 0:
        return
    current = plans.gpus[job, first_later - 1]
    spare = 0.0
    finish, _ = charged_finish(jobs, plans, job, nothing, nothing)
    if finish < inf:
        released = slot_end(finish + jobs.finishing[job], slots)
        spare = max(0.0, plans.time[job, count - 1] - released)
    # All pieces before ``until`` become one. The piece that covers ``until`` now begins there.
    written = 1
    plans.time[job, 0] = origin
    plans.gpus[job, 0] = held
    if current != held:
        plans.time[job, 1] = until
        plans.gpus[job, 1] = current
        written = 2
    for piece in range(first_later, count):
        plans.time[job, written] = plans.time[job, piece]
        plans.gpus[job, written] = plans.gpus[job, piece]
        written += 1
    plans.length[job] = written
    finish, gpu_time = charged_finish(jobs, plans, job, nothing, nothing)
    if finish < inf:
        plans.finish[job] = finish
        plans.gpu_time[job] = gpu_time
        _cut_after(plans, job, slot_end(finish + jobs.finishing[job], slots) + spare)


@leaf
def _cut_after(plans: Plans, job: int, release: float) -> None:
    """End a plan at ``release`` if it ends later."""
    piece = plans.length[job] - 1
    if plans.time[job, piece] <= release + TIME_TOLERANCE:
        return
    while piece > 0 and plans.time[job, piece - 1] >= release - TIME_TOLERANCE:
        piece -= 1
    plans.time[job, piece] = release
    plans.gpus[job, piece] = 0
    plans.length[job] = piece + 1
