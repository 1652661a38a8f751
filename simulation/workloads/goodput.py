"""Throughput of jobs whose batch size follows their GPUs, for policies that adapt it.

It comes from Pollux's public tables: seconds per step by GPUs and local batch, and the iterations of a whole
training with each global batch. An iteration with batch b does as much of the training as N(B) / N(b)
iterations with the job's own batch B, where N counts the iterations of a whole training: the statistical
efficiency over the training. Pollux tracks it as it changes during the training; this is its mean.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from simulation.workloads.pollux_tables import GPU_TYPE, pollux_points, training_iterations, validated_batches
from simulation.workloads.workload import MeasuredThroughput, ModelProfile, Workload


def with_goodput(workload: Workload, folder: Path | None) -> Workload:
    """Return the workload with adapted curves for the models that the tables in ``folder`` cover.

    Without a folder or a covered model the workload is returned as it is. Raises TraceError for unreadable
    tables.
    """
    if folder is None:
        return workload
    profiles = tuple(_adapted(profile, folder) for profile in workload.profiles)
    covered = sorted({profile.model for profile in profiles if profile.adapted})
    if not covered:
        return workload
    note = f"batch sizes of {', '.join(covered)} can be adapted: goodput by Pollux's public tables"
    return replace(workload, profiles=profiles, notes=(*workload.notes, note))


def goodput_points(folder: Path, application: str, global_batch_size: int) -> dict[int, float]:
    """Return iterations of ``global_batch_size`` per second by GPU count, each with its best batch size.

    Only batch sizes whose whole training was measured are tried. Empty for an application or batch that is
    not covered.
    """
    batches = validated_batches(folder, application)
    own = training_iterations(folder, application, global_batch_size)
    if not batches or own is None or not own[1]:
        return {}
    best: dict[int, float] = {}
    for batch, iterations in batches.items():
        for gpus, rate in pollux_points(folder, application, batch).items():
            best[gpus] = max(best.get(gpus, 0.0), rate * own[0] / iterations)
    return best


def _adapted(profile: ModelProfile, folder: Path) -> ModelProfile:
    fixed = profile.by_kind.get(GPU_TYPE)
    if fixed is None:
        return profile
    points = goodput_points(folder, profile.model, profile.global_batch_size)
    if not points:
        return profile
    for gpus, rate in zip(fixed.gpus.tolist(), fixed.iterations_per_second.tolist(), strict=True):
        points[gpus] = max(points.get(gpus, 0.0), rate)
    counts = sorted(points)
    curve = MeasuredThroughput(
        gpus=np.array(counts, dtype=np.int64),
        iterations_per_second=np.array([points[count] for count in counts]),
    )
    return replace(profile, adapted={GPU_TYPE: curve})
