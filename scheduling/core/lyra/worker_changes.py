"""From placements to the new worker map, the role of each server and the change of each job."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from kernels.compiling import kernel
from scheduling.core.lyra.fleet import BASE, FLEXIBLE, NO_ROLE, WorkerMap
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray

NOT_THERE = -1


class WorkerChange(IntEnum):
    """How a tick changes the workers of one job."""

    UNCHANGED = 0
    START = 1
    GROW = 2
    SHRINK = 3
    MOVE = 4
    """As many workers as before; some flexible ones are elsewhere."""


def edited_map(workers: WorkerMap, kept: IntArray, placed: IntArray) -> WorkerMap:
    """A worker map with all base workers, ``kept`` flexible workers on each entry, and the new placements.

    ``placed`` has rows (job, server, base workers, flexible workers).
    """
    order = np.argsort(placed[:, 0], kind="stable")
    return WorkerMap(*_edited(workers, kept, np.ascontiguousarray(placed[order])))


@kernel
def _edited(
    workers: WorkerMap, kept: IntArray, placed: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """The arrays of `edited_map`."""
    jobs = workers.offsets.size - 1
    most = workers.server.size + placed.shape[0]
    offsets = np.zeros(jobs + 1, dtype=np.int64)
    server = np.empty(most, dtype=np.int64)
    base = np.empty(most, dtype=np.int64)
    flexible = np.empty(most, dtype=np.int64)
    count = 0
    row = 0
    for job in range(jobs):
        first = count
        for entry in range(workers.offsets[job], workers.offsets[job + 1]):
            if workers.base[entry] + kept[entry] > 0:
                server[count] = workers.server[entry]
                base[count] = workers.base[entry]
                flexible[count] = kept[entry]
                count += 1
        while row < placed.shape[0] and placed[row, 0] == job:
            there = NOT_THERE
            for entry in range(first, count):
                if server[entry] == placed[row, 1]:
                    there = entry
                    break
            if there == NOT_THERE:
                there = count
                server[there] = placed[row, 1]
                base[there] = 0
                flexible[there] = 0
                count += 1
            base[there] += placed[row, 2]
            flexible[there] += placed[row, 3]
            row += 1
        offsets[job + 1] = count
    return offsets, server[:count].copy(), base[:count].copy(), flexible[:count].copy()


@kernel
def roles_with(on_loan: BoolArray, workers: WorkerMap) -> IntArray:
    """The role of every server: on loan, `BASE` with a base worker, `FLEXIBLE` with only flexible ones; else
    none.

    An on-loan server whose last base worker left becomes flexible, since it can be returned without
    preempting a job.
    """
    roles = np.full(on_loan.size, NO_ROLE)
    for entry in range(workers.server.size):
        server = workers.server[entry]
        if not on_loan[server]:
            continue
        if workers.base[entry] > 0:
            roles[server] = BASE
        elif roles[server] == NO_ROLE:
            roles[server] = FLEXIBLE
    return roles


@kernel
def _is_same(before: WorkerMap, after: WorkerMap, job: int) -> bool:
    """Whether a job has the same workers on the same servers in both maps, in any order."""
    for entry in range(before.offsets[job], before.offsets[job + 1]):
        there = NOT_THERE
        for candidate in range(after.offsets[job], after.offsets[job + 1]):
            if after.server[candidate] == before.server[entry]:
                there = candidate
                break
        if there == NOT_THERE or before.base[entry] != after.base[there]:
            return False
        if before.flexible[entry] != after.flexible[there]:
            return False
    return True


@kernel
def _differs_in_place(before: WorkerMap, after: WorkerMap) -> BoolArray:
    """Marks jobs whose entries differ in content or order between two maps: usually few."""
    offsets, server, base, flexible = before.offsets, before.server, before.base, before.flexible
    other_offsets, other_server = after.offsets, after.server
    other_base, other_flexible = after.base, after.flexible
    differs = np.zeros(offsets.size - 1, dtype=np.bool_)
    for job in range(differs.size):
        shift = other_offsets[job] - offsets[job]
        differs[job] = other_offsets[job + 1] - offsets[job + 1] != shift
        if differs[job]:
            continue
        for entry in range(offsets[job], offsets[job + 1]):
            other = entry + shift
            if (
                server[entry] != other_server[other]
                or base[entry] != other_base[other]
                or flexible[entry] != other_flexible[other]
            ):
                differs[job] = True
    return differs


@kernel
def worker_changes_between(before: WorkerMap, after: WorkerMap) -> IntArray:
    """The `WorkerChange` of each job between two maps."""
    differs = _differs_in_place(before, after)
    changes = np.zeros(differs.size, dtype=np.int64)
    for job in range(differs.size):
        if not differs[job]:
            continue
        counts = before.offsets[job + 1] - before.offsets[job], after.offsets[job + 1] - after.offsets[job]
        if counts[0] == counts[1] and _is_same(before, after, job):
            continue
        more = 0
        for entry in range(after.offsets[job], after.offsets[job + 1]):
            more += after.base[entry] + after.flexible[entry]
        for entry in range(before.offsets[job], before.offsets[job + 1]):
            more -= before.base[entry] + before.flexible[entry]
        if counts[0] == 0:
            changes[job] = _START
        elif more > 0:
            changes[job] = _GROW
        elif more < 0:
            changes[job] = _SHRINK
        else:
            changes[job] = _MOVE
    return changes


_START, _GROW, _SHRINK, _MOVE = (
    int(change) for change in (WorkerChange.START, WorkerChange.GROW, WorkerChange.SHRINK, WorkerChange.MOVE)
)
