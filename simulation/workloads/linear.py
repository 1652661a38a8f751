"""Workloads with unknown models: jobs request GPUs, and throughput grows linearly with the GPUs."""

from __future__ import annotations

import numpy as np

from scheduling.core.question.snapshot import FloatArray, IntArray, ServiceClass
from simulation.workloads.workload import MeasuredThroughput, ModelProfile, Workload

TRAINING_GPU, INFERENCE_GPU = "V100", "T4"
COMPUTING_POWER = 3
"""Inference GPUs that compute as much as one training GPU (Lyra's testbed)."""
MOST_GPUS = 4096
NOTE = "throughput is taken to grow as the GPUs do: nothing is known about the models"


def is_linear(workload: Workload) -> bool:
    """Return whether the workload's models are unknown, so that throughput grows linearly with the GPUs."""
    return NOTE in workload.notes


def as_linear(workload: Workload) -> Workload:
    """Return the jobs of any trace as Lyra's evaluation has them: GPUs and duration, without deadlines."""
    gpus = np.maximum(1, workload.requested_gpus)
    return linear_workload(
        workload.name, workload.source, workload.submitted_at, gpus, workload.requested_seconds
    )


def linear_workload(
    name: str, source: str, submitted_at: FloatArray, gpus: IntArray, seconds: FloatArray
) -> Workload:
    """Return best-effort jobs that take ``seconds`` on their ``gpus``; an iteration is one GPU second of a
    training GPU."""
    order = np.argsort(submitted_at, kind="stable")
    counts = 2 ** np.arange(MOST_GPUS.bit_length())
    on = {
        TRAINING_GPU: MeasuredThroughput(counts, counts.astype(np.float64)),
        INFERENCE_GPU: MeasuredThroughput(counts, counts / COMPUTING_POWER),
    }
    jobs = int(order.size)
    return Workload(
        name=name,
        source=f"{source}, {jobs} jobs",
        job_id=tuple(f"job{row:06d}" for row in range(jobs)),
        service_class=(ServiceClass.BEST_EFFORT,) * jobs,
        submitted_at=submitted_at[order],
        deadline_at=np.full(jobs, np.inf),
        iterations=np.asarray(gpus[order] * np.maximum(1.0, seconds[order]), dtype=np.float64),
        profile_of=np.zeros(jobs, dtype=np.int64),
        requested_gpus=gpus[order],
        requested_seconds=np.maximum(1.0, seconds[order]),
        profiles=(ModelProfile("linear", MOST_GPUS, on),),
        notes=(NOTE,),
    )
