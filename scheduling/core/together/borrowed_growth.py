"""Jobs on owned servers that grow onto borrowed ones with the same kind of GPU.

Only flexible workers go there, so that a server can be asked back without stopping anybody: the job shrinks
to what it holds at home. Who grows is a knapsack, as in Lyra's second phase (section 3.5.2), with growth
valued as on owned servers (decision 0013):

    value = own seconds saved (nothing for a promised job: it is on time either way)
          + GPU seconds of owned servers needed less x jobs / GPUs
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.kernels import kernel
from scheduling.core.lyra.fleet import Fleet, Speeds, WorkerMap, rate_of
from scheduling.core.lyra.knapsack import NO_ITEM, ItemGroups, choose_items
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

LEAST_GAIN_SECONDS = 1.0
"""Growth that saves less than this beyond its pause is none."""


class Growers(NamedTuple):
    """One row a job. ``at_home``: GPUs that it holds on owned servers. ``able``: it may have borrowed GPUs,
    ``may_change``: other ones than it has. ``promised``: it is on time by its plan on owned servers.
    ``remaining`` iterations; ``speeds`` on borrowed GPUs; ``pause_seconds``: what a change costs it."""

    at_home: IntArray
    able: BoolArray
    may_change: BoolArray
    promised: BoolArray
    remaining: FloatArray
    speeds: Speeds
    pause_seconds: FloatArray


def grown_onto_loans(
    fleet: Fleet, seated: WorkerMap, present: WorkerMap, growers: Growers, relief: float
) -> WorkerMap:
    """Flexible workers on borrowed servers, of jobs that hold owned ones. Workers are single GPUs.

    ``seated``: who is on borrowed servers already and stays. ``present``: flexible workers there until now.
    ``relief``: seconds of everybody's completion that one GPU second needed less is worth.
    """
    free = np.where(fleet.on_loan, fleet.gpus, 0)
    np.subtract.at(free, seated.server, seated.base + seated.flexible)
    held = _totals(present)
    groups, extra = _items(growers, held, relief)
    chosen = choose_items(groups, int(np.maximum(free, 0).sum())).chosen
    wanted = np.zeros(growers.at_home.size, dtype=np.int64)
    taken = chosen != NO_ITEM
    wanted[taken] = extra[chosen[taken]]
    hosts_base = np.zeros(free.size, dtype=np.bool_)
    hosts_base[seated.server[seated.base > 0]] = True
    workers: WorkerMap = _placed(wanted, present, free, hosts_base)
    return workers


def _totals(workers: WorkerMap) -> IntArray:
    jobs = workers.offsets.size - 1
    job_of = np.repeat(np.arange(jobs), np.diff(workers.offsets))
    total: IntArray = np.bincount(job_of, weights=workers.flexible, minlength=jobs).astype(np.int64)
    return total


def _items(growers: Growers, held: IntArray, relief: float) -> tuple[ItemGroups, IntArray]:
    """One group a job: the levels above what it holds at home, by extra GPUs and seconds saved."""
    offsets, weight, value = [0], list[int](), list[float]()
    present: list[int] = []
    speeds = growers.speeds
    for row in range(growers.able.size):
        group_present, home = NO_ITEM, int(growers.at_home[row])
        at_home = float(rate_of(speeds, row, home)) if growers.able[row] and home > 0 else 0.0
        # Measured there on more GPUs alone than it has: what growing saves is not known.
        if at_home > 0.0:
            now = float(growers.remaining[row]) / at_home
            worth = home * relief + (0.0 if growers.promised[row] else 1.0)
            for entry in range(int(speeds.offsets[row]), int(speeds.offsets[row + 1])):
                extra = int(speeds.workers[entry]) - home
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
    """Where the workers go: where they are now, then tightly onto servers without base workers, then into
    holes of the others."""
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
