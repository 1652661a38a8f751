"""A workload's curves as matrices: the levels that elastic policies use, and all measured points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.core.elasticflow.pause_budget import published_pause_seconds
from scheduling.core.question.columns import NO_LEVEL, CurveColumns, stack_curves
from scheduling.core.question.curves import curve_from_measurements, power_of_two
from scheduling.core.question.snapshot import FloatArray, IntArray, ScalingCurve
from scheduling.core.question.worker_counts import gpus_held, measurable_levels, workers_by_gpus
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import PoolSize
from simulation.engine.outside.expected_failures import PoolFailures
from simulation.workloads.workload import MeasuredThroughput, ModelProfile, Workload


@dataclass(frozen=True)
class CurveTables:
    """Curves of all jobs on one pool, one row per job: the planner's values, and the real ones.

    ``one_gpu``: throughput of one GPU (that of the smallest measured count divided by its GPUs), for cluster
    efficiency. ``charged_latency_seconds``: what planned pauses add to measured ones. ``planned_memory``,
    ``measured_memory``: host memory of one worker in bytes, in the shape of the curves; None if no job states
    any. Levels count held GPUs: four for three workers (decision 0018).
    """

    planned: CurveColumns
    measured: CurveColumns
    true_factor: FloatArray
    one_gpu: FloatArray
    requested_gpus: IntArray
    requested_seconds: FloatArray
    charged_latency_seconds: float = 0.0
    planned_memory: FloatArray | None = None
    measured_memory: FloatArray | None = None

    def rate(self, row: int, gpus: int) -> float:
        """Return the job's real iterations per second on ``gpus`` GPUs; 0 if not measured."""
        column = int(np.searchsorted(self.measured.levels[row], gpus))
        if gpus == 0 or column == self.measured.levels.shape[1] or self.measured.levels[row, column] != gpus:
            return 0.0
        return float(self.measured.throughput[row, column] * self.true_factor[row])

    def pause(self, row: int, gpus: int) -> float:
        """Return the real pause in seconds of a change onto ``gpus`` GPUs; 0 if not measured."""
        column = int(np.searchsorted(self.measured.levels[row], gpus))
        if gpus == 0 or column == self.measured.levels.shape[1] or self.measured.levels[row, column] != gpus:
            return 0.0
        return float(self.measured.pause[row, column])


def curve_tables(
    workload: Workload,
    pool: PoolSize,
    pauses: Pauses,
    *,
    charges_pauses: bool,
    adapts_batch: bool = False,
    promise_margin: float,
    agent_latency_seconds: float,
    true_factor: FloatArray,
    failures: PoolFailures | None = None,
) -> CurveTables:
    """Return the curves of all jobs on one pool, with the pauses of a cluster of its size.

    ``adapts_batch``: jobs run along their adapted curves where the workload has them. A policy that charges
    pauses adds the maximum ``agent_latency_seconds`` to them, as the live platform does by measuring pauses
    from the decision on. ``failures``: expected failures of the pool's servers.
    """
    charged = pauses if charges_pauses else Pauses.NONE
    latency = agent_latency_seconds if charges_pauses else 0.0
    planned, measured, one_gpu = [], [], []
    for profile in workload.profiles:
        points = _by_gpus_held(profile, profile.by_kind.get(pool.kind), pool)
        pause = _pause_seconds(pool, charged, points)
        planned.append(_levels(profile, points, pool, _later(pause, latency), promise_margin))
        adapted = profile.adapted.get(pool.kind)
        running = points if adapted is None or not adapts_batch else adapted
        measured.append(_all_points(running, pool, _pause_seconds(pool, charged, running)))
        one_gpu.append(_speed_of_one(points))
    of = workload.profile_of
    expected = _rows(stack_curves(planned), of)
    return CurveTables(
        planned=expected if failures is None else failures.lowered(expected, workload),
        measured=_rows(stack_curves(measured), of),
        true_factor=true_factor,
        one_gpu=np.array(one_gpu, dtype=np.float64)[of] if one_gpu else np.zeros(0),
        requested_gpus=_requested_gpus(workload),
        requested_seconds=workload.requested_seconds,
        charged_latency_seconds=latency,
        planned_memory=_memory(planned, of),
        measured_memory=_memory(measured, of),
    )


def _by_gpus_held(
    profile: ModelProfile, points: MeasuredThroughput | None, pool: PoolSize
) -> MeasuredThroughput | None:
    """Index the points of a function that declares its numbers of workers by the GPUs that these hold."""
    if points is None or not profile.worker_counts:
        return points
    allowed = measurable_levels(profile.global_batch_size, pool.gpus, profile.worker_counts)
    known = points.gpus.tolist()
    workers = workers_by_gpus(set(allowed) & set(known), profile.global_batch_size)
    rows = [known.index(count) for count in workers.values()]
    return MeasuredThroughput(
        np.array(list(workers), dtype=np.int64),
        points.iterations_per_second[rows],
        None if points.pause_seconds is None else points.pause_seconds[rows],
        None if points.memory_bytes is None else points.memory_bytes[rows],
    )


def _requested_gpus(workload: Workload) -> IntArray:
    """Return the GPUs that the requested workers hold, which rival schedulers allocate."""
    requested = workload.requested_gpus.copy()
    for row in range(workload.jobs):
        if workload.profiles[int(workload.profile_of[row])].worker_counts:
            requested[row] = gpus_held(int(requested[row]))
    return requested


def _memory(curves: Sequence[ScalingCurve], of: IntArray) -> FloatArray | None:
    """Return the host memory of one worker by job and level; None if no job states any."""
    if all(curve.memory_bytes is None for curve in curves):
        return None
    width = max(1, *(curve.levels.size for curve in curves))
    needs = np.zeros((len(curves), width))
    for row, curve in enumerate(curves):
        if curve.memory_bytes is not None:
            needs[row, : curve.levels.size] = curve.memory_bytes
    rows: FloatArray = needs[of]
    return rows


def _later(pause: Callable[[int], float], seconds: float) -> Callable[[int], float]:
    return lambda gpus: pause(gpus) + seconds


def _pause_seconds(
    pool: PoolSize, pauses: Pauses, points: MeasuredThroughput | None
) -> Callable[[int], float]:
    if pauses is Pauses.NONE:
        return lambda gpus: 0.0
    if points is not None and points.pause_seconds is not None:
        measured = dict(zip(points.gpus.tolist(), points.pause_seconds.tolist(), strict=True))
        return lambda gpus: measured[gpus]
    return lambda gpus: published_pause_seconds(gpus, cluster_gpus=pool.gpus)


def _levels(
    profile: ModelProfile,
    points: MeasuredThroughput | None,
    pool: PoolSize,
    pause: Callable[[int], float],
    margin: float,
) -> ScalingCurve:
    known = (
        {} if points is None else dict(zip(points.gpus.tolist(), points.iterations_per_second, strict=True))
    )
    memory = _memory_by_gpus(points)
    return curve_from_measurements(
        {gpus: float(rate) * (1.0 - margin) for gpus, rate in known.items()},
        # Not every held GPU has a worker if numbers of workers are declared; those divide the batch.
        global_batch_size=None if profile.worker_counts else profile.global_batch_size,
        cluster_gpus=pool.gpus,
        pause_seconds=pause,
        memory_bytes=memory.__getitem__ if memory else None,
    )


def _all_points(
    points: MeasuredThroughput | None, pool: PoolSize, pause: Callable[[int], float]
) -> ScalingCurve:
    gpus: IntArray = np.zeros(0, dtype=np.int64) if points is None else points.gpus
    rates: FloatArray = np.zeros(0) if points is None else points.iterations_per_second
    whole_block = np.array([power_of_two(count) for count in gpus.tolist()], dtype=np.bool_)
    fits = (gpus <= pool.gpus) & whole_block
    memory = None if points is None or points.memory_bytes is None else points.memory_bytes[fits]
    pauses = np.array([pause(int(count)) for count in gpus[fits]], dtype=np.float64)
    return ScalingCurve(gpus[fits], rates[fits], pauses, memory)


def _memory_by_gpus(points: MeasuredThroughput | None) -> dict[int, float]:
    if points is None or points.memory_bytes is None:
        return {}
    return dict(zip(points.gpus.tolist(), points.memory_bytes.tolist(), strict=True))


def _speed_of_one(points: MeasuredThroughput | None) -> float:
    if points is None or not points.gpus.size:
        return 0.0
    return float(points.iterations_per_second[0]) / float(points.gpus[0])


def _rows(curves: CurveColumns, of: IntArray) -> CurveColumns:
    if not curves.levels.shape[0]:
        return CurveColumns(np.full((of.size, 1), NO_LEVEL), np.zeros((of.size, 1)), np.zeros((of.size, 1)))
    return CurveColumns(curves.levels[of], curves.throughput[of], curves.pause[of])
