"""Ranges of workers from measured curves: a worker is one GPU, and a job runs on every measured level.

A job is fungible if its model was also measured on the inference cluster's kind of GPU, with one batch size.
A preempted job keeps its progress, as on the live platform.
"""

from __future__ import annotations

import numpy as np

from scheduling.core.lyra.fleet import Speeds
from simulation.engine.curves.tables import CurveTables
from simulation.engine.curves.worker_tables import WorkerTables, speeds_of_columns
from simulation.workloads.scenarios import WorkerRanges
from simulation.workloads.workload import Workload


def curve_ranges(workload: Workload, owned: CurveTables, lent: CurveTables | None) -> WorkerTables:
    """Return the tables of a workload, given its curves on training GPUs and on inference GPUs (None if not
    measured)."""
    jobs = workload.jobs
    on_owned = speeds_of_columns(owned.planned)
    on_lent = (
        Speeds(np.zeros(jobs + 1, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))
        if lent is None
        else speeds_of_columns(lent.planned)
    )
    counts = np.diff(on_owned.offsets)
    known = counts > 0
    base, most = np.ones(jobs, dtype=np.int64), np.ones(jobs, dtype=np.int64)
    base[known] = on_owned.workers[on_owned.offsets[:-1][known]]
    most[known] = on_owned.workers[on_owned.offsets[1:][known] - 1]
    return WorkerTables(
        ranges=WorkerRanges(
            gpus_per_worker=np.ones(jobs, dtype=np.int64),
            base=base,
            most=most,
            requested=np.clip(workload.requested_gpus, base, most),
            fungible=np.diff(on_lent.offsets) > 0,
            mixes=np.zeros(jobs, dtype=np.bool_),
            keeps_progress=np.ones(jobs, dtype=np.bool_),
            estimate_factor=np.ones(jobs),
            gain=1.0,
            mixing_efficiency=1.0,
        ),
        work=workload.iterations.astype(np.float64),
        owned=on_owned,
        lent=on_lent,
        expansion=1,
    )
