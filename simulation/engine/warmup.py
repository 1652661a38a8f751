"""A few jobs on a small cluster, whose simulation reaches a policy's compiled loops.

Compiled code is cached on disk; loading it takes about a second per process.
"""

from __future__ import annotations

import numpy as np

from scheduling.core.question.snapshot import ServiceClass
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.workloads.workload import MeasuredThroughput, ModelProfile, Workload

JOBS = 12
TOGETHER = 5
"""Jobs from this one on are submitted together, since decisions on many newcomers reach other kernels."""
GPU_TYPE = "warm-up"


def few_jobs(policy: str) -> tuple[Workload, SimulationSettings]:
    """Return jobs and a cluster that reach what a run under ``policy`` compiles."""
    return _workload(), SimulationSettings(
        policy=policy, pools=(PoolSize(GPU_TYPE, 2, 4),), slot_seconds=10.0
    )


def _workload() -> Workload:
    gpus = np.array([1, 2, 4, 8], dtype=np.int64)
    points = MeasuredThroughput(gpus, np.array([1.0, 1.8, 3.0, 4.5]))
    number = np.arange(JOBS)
    free = number % 3 == 2
    submitted_at = 7.0 * np.minimum(
        number, TOGETHER
    )  # forecasts of several newcomers in one decision build on each other
    return Workload(
        name="warm-up",
        source="made up",
        job_id=tuple(f"job-{one:02d}" for one in number),
        service_class=tuple(ServiceClass.BEST_EFFORT if one else ServiceClass.SLO for one in free.tolist()),
        submitted_at=submitted_at,
        deadline_at=np.where(free, np.inf, submitted_at + 60.0 + 30.0 * (number % 4)),
        iterations=(40.0 + 25.0 * (number % 5)).astype(np.float64),
        profile_of=np.zeros(JOBS, dtype=np.int64),
        requested_gpus=2 ** (number % 4),
        requested_seconds=np.full(JOBS, 60.0),
        profiles=(ModelProfile("made up", 64, {GPU_TYPE: points}),),
    )
