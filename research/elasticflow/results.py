"""The stored part of a run of ElasticFlow's evaluation: its summary, a few facts, and its history."""

from __future__ import annotations

import numpy as np

from research.store import RunResult, short_summary
from scheduling.core.question.snapshot import FloatArray
from simulation.outcome import JobEnd, RunOutcome
from simulation.reports import measures
from simulation.reports.steps import steps

MOST_STEPS = 600
"""Histories are stored as this many means over equal spans: areas stay exact."""


def result_of(outcome: RunOutcome, bounds: dict[str, int]) -> RunResult:
    """Return the stored part of an outcome. ``bounds``: upper bounds on jobs on time under any policy,
    by name (``slo_jobs_possible_alone``, ``slo_jobs_possible_as_requested``).

    ``facts``: these, and ``peak_cluster_efficiency``. ``series``: ``hours`` since the run began, and at these
    times ``gpus_used``, ``cluster_efficiency``, ``jobs_running``, ``submitted``, ``admitted`` and
    ``declined`` (the last three counted from the start).
    """
    efficiency = outcome.cluster.cluster_efficiency
    return RunResult(
        summary=short_summary(outcome),
        facts={
            "peak_cluster_efficiency": float(efficiency.max()) if efficiency.size else 0.0,
            **bounds,
        },
        series=_series(outcome),
    )


def _series(outcome: RunOutcome) -> dict[str, list[float]]:
    cluster, jobs = outcome.cluster, outcome.jobs
    if not cluster.time.size:
        return {}
    begin = measures.begin_at(outcome)
    kept = steps(
        cluster.time,
        np.array([measures.gpus_used(cluster), cluster.cluster_efficiency, cluster.jobs_running]),
        outcome.end_at,
        MOST_STEPS,
    )
    declined = measures.has_end(jobs, JobEnd.DECLINED)
    admitted = measures.is_decided(jobs) & ~declined
    counted = {
        "submitted": jobs.submitted_at,
        "admitted": jobs.submitted_at[admitted],
        "declined": jobs.submitted_at[declined],
    }
    return {
        "hours": _rounded((kept.time - begin) / 3600.0),
        "gpus_used": _rounded(kept.values[0]),
        "cluster_efficiency": _rounded(kept.values[1]),
        "jobs_running": _rounded(kept.values[2]),
        **{
            name: _rounded(np.searchsorted(np.sort(times), kept.time, side="right").astype(np.float64))
            for name, times in counted.items()
        },
    }


def _rounded(values: FloatArray) -> list[float]:
    rounded: list[float] = np.round(np.nan_to_num(values), 5).tolist()
    return rounded
