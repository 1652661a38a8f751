"""A decision about some of the jobs, and its answer among all jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import BoolArray, JobArrays, Plans, no_plans
from scheduling.core.question.columns import CurveColumns, JobColumns, regather
from scheduling.core.question.snapshot import IntArray


def columns_part(columns: JobColumns, rows: IntArray, waiting: BoolArray) -> JobColumns:
    """The columns of the jobs ``rows``, ascending; jobs marked in ``waiting`` hold no GPUs."""
    addresses, offsets = regather(columns.addresses, columns.offsets, np.where(waiting, -1, rows))
    taken = {
        name: getattr(columns, name)[rows]
        for name in (
            "service_class", "submitted_at", "deadline_at", "remaining_iterations", "total_iterations",
            "newcomer", "promised", "at_risk", "locked", "finishing", "failure_slack", "requested_gpus",
            "requested_seconds",
            "attained_gpu_seconds", "memory", "project",
        )
    }  # fmt: skip
    return replace(
        columns,
        ids=tuple(columns.ids[row] for row in rows.tolist()),
        curves=CurveColumns(
            columns.curves.levels[rows], columns.curves.throughput[rows], columns.curves.pause[rows]
        ),
        measured=CurveColumns(
            columns.measured.levels[rows], columns.measured.throughput[rows], columns.measured.pause[rows]
        ),
        gpus=np.where(waiting, 0, columns.gpus[rows]),
        pause_left=np.where(waiting, 0.0, columns.pause_left[rows]),
        addresses=addresses,
        offsets=offsets,
        **taken,
    )


def part_of(problem: Problem, rows: IntArray, waiting: BoolArray | None = None) -> Problem:
    """The problem with only the jobs ``rows``, ascending; held offers stay.

    Jobs marked in ``waiting`` hold no GPUs.
    """
    waiting = np.zeros(rows.size, dtype=np.bool_) if waiting is None else waiting
    offers = np.arange(problem.count, problem.jobs.work.size)
    kept = np.concatenate((rows, offers))
    ranks = np.empty(kept.size, dtype=np.int64)
    ranks[np.argsort(problem.by_deadline[kept], kind="stable")] = np.arange(kept.size)
    jobs, stored = problem.jobs, problem.stored
    holding = np.concatenate((~waiting, np.ones(offers.size, dtype=np.bool_)))
    return Problem(
        now=problem.now,
        next_slot_at=problem.next_slot_at,
        settings=problem.settings,
        columns=columns_part(problem.columns, rows, waiting),
        offers=problem.offers,
        jobs=JobArrays(
            levels=jobs.levels[kept],
            throughput=jobs.throughput[kept],
            pause=jobs.pause[kept],
            level_count=jobs.level_count[kept],
            work=jobs.work[kept],
            gpus=np.where(holding, jobs.gpus[kept], 0),
            pause_left=np.where(holding, jobs.pause_left[kept], 0.0),
            finished_at=jobs.finished_at[kept],
            finishing=jobs.finishing[kept],
            locked=jobs.locked[kept],
            locked_until=jobs.locked_until[kept],
            earliest=jobs.earliest[kept],
        ),
        due=problem.due[kept],
        stored=Plans(
            time=stored.time[kept],
            gpus=stored.gpus[kept],
            length=stored.length[kept],
            finish=stored.finish[kept],
            gpu_time=stored.gpu_time[kept],
            reserved_until=stored.reserved_until[kept],
        ),
        by_deadline=ranks,
        by_submission=np.arange(kept.size),
        origin=problem.origin,
        blocks=problem.blocks,
        gpus=problem.gpus,
        promise_gpus=problem.promise_gpus,
        slack_seconds=problem.slack_seconds[kept],
        blocked=problem.blocked,
        blocked_until=problem.blocked_until,
        cluster_memory=problem.cluster_memory,
        short_of_memory_bytes=problem.short_of_memory_bytes,
    )


def plans_among(plans: Plans, rows: IntArray, count: int) -> Plans:
    """Extend the plans of ``rows`` to all ``count`` jobs; other jobs get no plan. Plans of offers follow
    unchanged."""
    among = no_plans(count + plans.length.size - rows.size, plans.time.shape[1])
    kept = np.concatenate((rows, np.arange(count, among.length.size)))
    for column, source in zip(among, plans, strict=True):
        column[kept] = source
    return among
