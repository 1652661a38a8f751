"""Jobs on owned servers that grow onto borrowed servers with the same kind of GPU.

Only flexible workers are placed there, so a reclaim preempts no job: the job shrinks to its GPUs on owned
servers. A knapsack chooses which jobs grow, as in Lyra's phase 2 (section 3.5.2). It values growth as on
owned servers (decision 0014):

    value = the job's own seconds saved (0 for a promised job, which is on time either way)
          + GPU seconds of owned servers saved x jobs / GPUs
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiling import kernel
from scheduling.core.lyra.fleet import Fleet, Speeds, WorkerMap, rate_of
from scheduling.core.lyra.knapsack import NO_ITEM, ItemGroups, choose_items
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

LEAST_GAIN_SECONDS = 1.0
"""Growth that saves less than this beyond its pause is none."""


class Growers(NamedTuple):
    """Jobs that may grow onto borrowed servers, one row for each job."""

    #: GPUs that the job holds on owned servers.
    on_owned: IntArray
    #: Whether the job may hold borrowed GPUs.
    able: BoolArray
    #: Whether its number of borrowed GPUs may change.
    may_change: BoolArray
    #: Whether its plan on owned servers keeps a promise.
    promised: BoolArray
    #: Iterations left.
    remaining: FloatArray
    #: Rates by number of GPUs, as measured on the borrowed kind.
    speeds: Speeds
    #: The pause of a change, in seconds.
    pause_seconds: FloatArray


def grown_onto_loans(
    fleet: Fleet, seated: WorkerMap, present: WorkerMap, growers: Growers, relief: float
) -> WorkerMap:
    """Choose and place flexible workers on borrowed servers, for jobs that hold owned GPUs. A worker is one
    GPU.

    ``seated``: workers that already run on borrowed servers and stay. ``present``: flexible workers that are
    there now. ``relief``: seconds of all jobs' completion time that one saved GPU second is worth.
    """
    free = np.where(fleet.on_loan, fleet.gpus, 0)
    np.subtract.at(free, seated.server, seated.base + seated.flexible)
    held = _totals(present)
    groups, extra = _items(growers, held, relief)
    chosen = choose_items(groups, int(np.maximum(free, 0).sum())).chosen
    wanted = np.zeros(growers.on_owned.size, dtype=np.int64)
    taken = chosen != NO_ITEM
    wanted[taken] = extra[chosen[taken]]
    hosts_base = np.zeros(free.size, dtype=np.bool_)
    hosts_base[seated.server[seated.base > 0]] = True
    workers: WorkerMap = _placed(wanted, present, free, hosts_base)
    return workers


def _totals(workers: WorkerMap) -> IntArray:
    """Flexible workers of each job on all servers in sum."""
    jobs = workers.offsets.size - 1
    job_of = np.repeat(np.arange(jobs), np.diff(workers.offsets))
    total: IntArray = np.bincount(job_of, weights=workers.flexible, minlength=jobs).astype(np.int64)
    return total


def _items(growers: Growers, held: IntArray, relief: float) -> tuple[ItemGroups, IntArray]:
    """Knapsack items: for each job, the levels above its owned GPUs, with their extra GPUs and seconds
    saved."""
    offsets, weight, value = [0], list[int](), list[float]()
    present: list[int] = []
    speeds = growers.speeds
    for row in range(growers.able.size):
        group_present, owned = NO_ITEM, int(growers.on_owned[row])
        rate = float(rate_of(speeds, row, owned)) if growers.able[row] and owned > 0 else 0.0
        # Without a rate at its number of owned GPUs, the seconds that growth saves are unknown.
        if rate > 0.0:
            now = float(growers.remaining[row]) / rate
            worth = owned * relief + (0.0 if growers.promised[row] else 1.0)
            for entry in range(int(speeds.offsets[row]), int(speeds.offsets[row + 1])):
                extra = int(speeds.workers[entry]) - owned
                same = extra == held[row]
                if extra <= 0 or not (same or growers.may_change[row]):
                    continue
                pause = 0.0 if same else float(growers.pause_seconds[row])
                saved = now - float(growers.remaining[row]) / float(speeds.rate[entry]) - pause
                if saved > LEAST_GAIN_SECONDS:
                    group_present = len(weight) if same else group_present
                    weight.append(extra)
                    value.append(saved * worth)
        offsets.append(len(weight))
        present.append(group_present)
    weights = np.array(weight, dtype=np.int64)
    groups = ItemGroups(
        np.array(offsets, dtype=np.int64),
        weights,
        np.array(value, dtype=np.float64),
        np.array(present, dtype=np.int64),
    )
    return groups, weights


@kernel
def _placed(wanted: IntArray, present: WorkerMap, free: IntArray, hosts_base: BoolArray) -> WorkerMap:
    """Place the workers: first where they are now, then by best fit on servers without base workers, then
    beside base workers."""
    jobs = wanted.size
    server = np.empty(wanted.sum(), dtype=np.int64)
    count = np.empty(wanted.sum(), dtype=np.int64)
    offsets = np.zeros(jobs + 1, dtype=np.int64)
    kept = np.zeros((jobs, free.size), dtype=np.int64)
    for job in range(jobs):
        left = wanted[job]
        for entry in range(present.offsets[job], present.offsets[job + 1]):
            stays = min(left, present.flexible[entry], max(0, free[present.server[entry]]))
            kept[job, present.server[entry]] = stays
            free[present.server[entry]] -= stays
            left -= stays
    written = 0
    for job in range(jobs):
        left = wanted[job] - kept[job].sum()
        for crowded in (False, True):
            while left > 0:
                best = -1
                for one in range(free.size):
                    if hosts_base[one] == crowded and free[one] > 0 and (best < 0 or free[one] < free[best]):
                        best = one
                if best < 0:
                    break
                taken = min(left, free[best])
                kept[job, best] += taken
                free[best] -= taken
                left -= taken
        for one in range(free.size):
            if kept[job, one] > 0:
                server[written] = one
                count[written] = kept[job, one]
                written += 1
        offsets[job + 1] = written
    return WorkerMap(
        offsets, server[:written].copy(), np.zeros(written, dtype=np.int64), count[:written].copy()
    )
