"""Hold the next slot's GPUs until something has to change.

Algorithm 2 looks one slot ahead: its plans give grants back after that slot, only for the next
decision to make the same grants again. Until the first time that some plan needs more GPUs or some
job ends, everybody can keep what they hold. Nobody gets later by that: a drop is only put off, and
the job has done at least as much work by then.
"""

from __future__ import annotations

from math import inf

import numpy as np

from scheduling.core.kernels import kernel, leaf
from scheduling.core.plans.charging import charged_finish
from scheduling.core.plans.slots import Slots, slot_end
from scheduling.core.question.arrays import TIME_TOLERANCE, JobArrays, Plans, planned_gpus
from scheduling.core.question.snapshot import FloatArray, IntArray


@leaf
def _release_when_held(jobs: JobArrays, plans: Plans, job: int, gpus: int, slots: Slots) -> float:
    """Slot end at which the job is done when it keeps ``gpus`` GPUs from the next slot on."""
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
    """First time after the next slot begins at which a plan takes more GPUs or a job is done."""
    origin = slots.origin
    wake = inf
    for job in rows:
        count = plans.length[job]
        if count == 0:
            continue
        held = planned_gpus(plans, job, origin)
        if held > 0:
            release = _release_when_held(jobs, plans, job, held, slots)
            if origin + TIME_TOLERANCE < release < wake:
                wake = release
        before = held
        for piece in range(count):
            at = plans.time[job, piece]
            if at > origin + TIME_TOLERANCE:
                if (plans.gpus[job, piece] > before or piece == count - 1) and at < wake:
                    wake = at
                before = plans.gpus[job, piece]
    return wake


@kernel
def hold_until(jobs: JobArrays, plans: Plans, rows: IntArray, until: float, slots: Slots) -> None:
    """Let every plan keep its GPUs of the next slot until ``until``; the rest stays as it was.

    Plans that end earlier by that are cut as long after their new finish as they were held after the old one:
    that time is there for moves which placing all plans will force, and which no plan knows of by itself.
    """
    nothing = np.zeros(0)
    for job in rows:
        _hold_job(jobs, plans, job, until, slots, nothing)


@leaf
def _hold_job(
    jobs: JobArrays, plans: Plans, job: int, until: float, slots: Slots, nothing: FloatArray
) -> None:
    """`hold_until` for one job; ``nothing`` is charged."""
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
    # Pieces before ``until`` become one; the piece that is under way at ``until`` begins there.
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
