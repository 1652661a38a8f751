"""Jobs and held offers as arrays at the end of the frozen head, and offers that would be late."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from kernels.compiling import kernel
from scheduling.core.plans.charging import charged_finish
from scheduling.core.question.arrays import TIME_TOLERANCE, BoolArray, JobArrays, Plans
from scheduling.core.question.columns import NO_LEVEL, CurveColumns, JobColumns, columns_of, stack_curves
from scheduling.core.question.snapshot import FloatArray, HeldOffer, IntArray, ScalingCurve


def offered_due(offer: HeldOffer, now: float) -> float:
    if offer.job is None:
        return float("inf")
    return float(offer.job.deadline_at - offer.job.finishing_seconds - now)


def judge_offers(jobs: JobArrays, stored: Plans, due: FloatArray, own: int) -> None:
    """Write the finish of each offer's job into ``stored``; an offer that would be late loses its deadline.

    Such an offer still holds its capacity. With its deadline it would be late under every plan, so it would
    forbid all changes to other jobs, though none could help it.
    """
    for row in range(own, due.size):
        stored.finish[row] = stored.time[row, max(0, stored.length[row] - 1)]
        ends_at, _ = charged_finish(jobs, stored, row, np.zeros(0), np.zeros(0))
        if ends_at > due[row] + TIME_TOLERANCE:
            due[row] = inf
        else:
            stored.finish[row] = ends_at


def job_arrays(
    columns: JobColumns,
    curves: CurveColumns,
    offers: tuple[HeldOffer, ...],
    origin: float,
    locked_until: FloatArray,
    cluster_gpus: int,
) -> JobArrays:
    """Jobs and offers as `JobArrays` at ``origin``."""
    gpus, pause_left, work, finishing, locked = (
        columns.gpus, columns.pause_left, columns.remaining_iterations, columns.finishing, columns.locked,
    )  # fmt: skip
    extra = len(offers)
    if extra:
        curves = _with_offer_curves(curves, offers)
        offered = columns_of([offer.job for offer in offers if offer.job is not None])
        known = np.array([offer.job is not None for offer in offers])
        work, finishing = (
            _extended(work, offered.remaining_iterations, known),
            _extended(finishing, offered.finishing, known),
        )
        pause_left = np.concatenate((pause_left, np.zeros(extra)))
        gpus = np.concatenate((gpus, np.zeros(extra, dtype=np.int64)))
        locked = np.concatenate((locked, np.zeros(extra, dtype=np.bool_)))
        locked_until = np.concatenate((locked_until, np.full(extra, origin)))
    at_present = JobArrays(
        curves.levels, curves.throughput, curves.pause, np.zeros(gpus.size, dtype=np.int64), work, gpus,
        pause_left, np.full(gpus.size, inf), finishing, locked, locked_until,
        np.full(gpus.size, origin),
    )  # fmt: skip
    level_count, work, left, finished_at = work_off_head(at_present, origin, cluster_gpus, extra)
    return at_present._replace(level_count=level_count, work=work, pause_left=left, finished_at=finished_at)


def _extended(column: FloatArray, offered: FloatArray, known: BoolArray) -> FloatArray:
    tail = np.zeros(known.size)
    tail[known] = offered
    return np.concatenate((column, tail))


def _with_offer_curves(curves: CurveColumns, offers: Sequence[HeldOffer]) -> CurveColumns:
    """The jobs' curves followed by those of the offers."""
    more = stack_curves(
        [offer.job.curve if offer.job is not None else _offer_curve(offer) for offer in offers]
    )
    width = max(curves.levels.shape[1], more.levels.shape[1])

    def widened(matrix: np.ndarray, filler: float) -> np.ndarray:
        room = ((0, 0), (0, width - matrix.shape[1]))
        return np.pad(matrix, room, constant_values=filler)

    return CurveColumns(
        np.concatenate((widened(curves.levels, NO_LEVEL), widened(more.levels, NO_LEVEL))),
        np.concatenate((widened(curves.throughput, 0), widened(more.throughput, 0))),
        np.concatenate((widened(curves.pause, 0), widened(more.pause, 0))),
    )


def _offer_curve(offer: HeldOffer) -> ScalingCurve:
    """A curve with the GPU counts of an offer's plan, so that the forecast can place them."""
    levels = np.unique(offer.plan.gpus[offer.plan.gpus > 0]).astype(np.int64)
    return ScalingCurve(levels, np.ones(levels.size), np.zeros(levels.size))


@kernel
def work_off_head(
    jobs: JobArrays, origin: float, cluster_gpus: int, offers: int
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Advance the jobs to the end of the frozen head of ``origin`` seconds. The last ``offers`` rows are
    waiting.

    Returns what differs then: number of levels, iterations left, seconds left of a pause, when a job ends.
    """
    levels = jobs.levels
    throughput = jobs.throughput
    remaining = jobs.work
    held = jobs.gpus
    pause_left = jobs.pause_left
    rows = held.size
    work = np.empty(rows)
    left = np.zeros(rows)
    finished_at = np.full(rows, np.inf)
    level_count = np.zeros(rows, dtype=np.int64)
    for row in range(rows):
        fitting = 0
        for column in range(levels.shape[1]):
            fitting += levels[row, column] <= cluster_gpus
        level_count[row] = fitting
        rate = 0.0
        for column in range(levels.shape[1] if held[row] > 0 else 0):
            if levels[row, column] == held[row]:
                rate = throughput[row, column]
        productive = max(0.0, origin - pause_left[row])
        if held[row] > 0:
            left[row] = max(0.0, pause_left[row] - origin)
        work[row] = remaining[row] - rate * productive
        ends = remaining[row] <= rate * (productive + TIME_TOLERANCE) and (rate > 0 or remaining[row] <= 0)
        if ends:
            work[row] = 0.0
            if row < rows - offers:
                finished_at[row] = pause_left[row] + remaining[row] / rate if remaining[row] > 0 else 0.0
    return level_count, work, left, finished_at
