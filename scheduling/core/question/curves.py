"""Scaling curves: which GPU counts are levels of a job, and its throughput there.

ElasticFlow section 4.1. Also the minimum satisfactory share on an empty cluster, and cluster efficiency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from scheduling.core.question.snapshot import ScalingCurve


def curve_from_measurements(
    iterations_per_second: Mapping[int, float],
    *,
    global_batch_size: int | None = None,
    largest_local_batch: int | None = None,
    cluster_gpus: int | None = None,
    pause_seconds: Callable[[int], float] | None = None,
    powers_of_two: bool = True,
    memory_bytes: Callable[[int], float] | None = None,
) -> ScalingCurve:
    """The levels that measurements support: only measured counts are levels.

    A count is a level when it is a power of two, divides the global batch, keeps the local batch within
    ``largest_local_batch`` samples, fits the cluster, and is strictly faster than the level before it. The
    scan stops at the first count without gain. ``pause_seconds`` gives the pause of a start on a GPU count;
    without it no level has a pause. ``memory_bytes`` gives the host memory reserved for one worker on a GPU
    count, 0 where it was not measured. The curve may have no level.
    """
    levels: list[int] = []
    throughput: list[float] = []
    for gpus in sorted(iterations_per_second):
        if not _is_allowed(gpus, global_batch_size, largest_local_batch, cluster_gpus, powers_of_two):
            continue
        rate = float(iterations_per_second[gpus])
        if not isfinite(rate) or rate <= 0:
            continue
        if throughput and rate <= throughput[-1]:
            break
        levels.append(gpus)
        throughput.append(rate)
    pauses = [pause_seconds(gpus) if pause_seconds else 0.0 for gpus in levels]
    return ScalingCurve(
        levels=np.array(levels, dtype=np.int64),
        throughput=np.array(throughput, dtype=np.float64),
        pause_seconds=np.array(pauses, dtype=np.float64),
        memory_bytes=None
        if memory_bytes is None
        else np.array([memory_bytes(gpus) for gpus in levels], dtype=np.float64),
    )


def lowered(curve: ScalingCurve, shares: Sequence[float]) -> ScalingCurve:
    """The curve with the throughput of each level times its share; it ends at the first level without
    gain."""
    if not curve.levels.size or all(share == 1.0 for share in shares):
        return curve
    throughput = curve.throughput * np.array(shares, dtype=np.float64)
    without_gain = np.flatnonzero(np.diff(throughput) <= 0.0)
    size = int(without_gain[0]) + 1 if without_gain.size else throughput.size
    return replace(
        curve,
        levels=curve.levels[:size],
        throughput=throughput[:size],
        pause_seconds=curve.pause_seconds[:size],
        memory_bytes=None if curve.memory_bytes is None else curve.memory_bytes[:size],
    )


def _is_allowed(
    gpus: int,
    global_batch_size: int | None,
    largest_local_batch: int | None,
    cluster_gpus: int | None,
    powers_of_two: bool,
) -> bool:
    if gpus < 1 or (powers_of_two and not power_of_two(gpus)):
        return False
    if cluster_gpus is not None and gpus > cluster_gpus:
        return False
    if global_batch_size is None:
        return True
    if gpus > global_batch_size or global_batch_size % gpus:
        return False
    return largest_local_batch is None or global_batch_size // gpus <= largest_local_batch


def power_of_two(gpus: int) -> bool:
    """Whether so many GPUs are a power of two: those fill one aligned block (ElasticFlow 4.3)."""
    return gpus > 0 and gpus & (gpus - 1) == 0


def throughput_at(curve: ScalingCurve, gpus: int) -> float:
    """Iterations per second on ``gpus`` GPUs; 0 where that count is not a level."""
    index = int(np.searchsorted(curve.levels, gpus))
    if index == curve.levels.size or curve.levels[index] != gpus:
        return 0.0
    return float(curve.throughput[index])


def pause_at(curve: ScalingCurve, gpus: int) -> float:
    """Seconds without progress after a start on ``gpus`` GPUs; 0 where that is not a level."""
    index = int(np.searchsorted(curve.levels, gpus))
    if index == curve.levels.size or curve.levels[index] != gpus:
        return 0.0
    return float(curve.pause_seconds[index])


def share_on_empty_cluster(curve: ScalingCurve, iterations: float, seconds: float) -> int | None:
    """The smallest level that completes ``iterations`` within ``seconds``, or None.

    This is the paper's minimum satisfactory share of a job that is alone. Pauses are not included.
    """
    fast_enough = np.flatnonzero(iterations <= curve.throughput * seconds * (1 + 1e-9))
    return int(curve.levels[fast_enough[0]]) if fast_enough.size else None
