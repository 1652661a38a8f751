"""The stored part of a run of Lyra's evaluation: its summary, and all waiting and completion times."""

from __future__ import annotations

import numpy as np

from research.store import RunResult, short_summary
from scheduling.core.question.snapshot import FloatArray
from simulation.outcome import RunOutcome
from simulation.reports import measures
from simulation.reports.lending import training_usage

DAY_SECONDS = 86_400.0
HOUR_SECONDS = 3600.0


def result_of(outcome: RunOutcome, *, inference_servers: int, usage: FloatArray) -> RunResult:
    """Return the stored part of an outcome. ``usage``: of the inference cluster every five minutes, used even
    without loans.

    ``series``: ``submitted_seconds``, ``waiting_seconds``, ``first_waiting_seconds`` (until its first start)
    and ``jct_seconds`` by job, ``borrowers`` (rows of jobs seen on servers on loan), ``usage_by_hour``
    (overall), ``on_loan_usage_by_day``, and by reclaim ``wanted``, ``preempted``, ``running``,
    ``collateral``.
    """
    overall = overall_usage(outcome, inference_servers, usage)
    jobs, loans = outcome.jobs, outcome.loans
    reclaims = () if loans is None else loans.reclaims
    return RunResult(
        summary=short_summary(outcome),
        facts={
            "training_usage": training_usage(outcome) or 0.0,
            "overall_usage": float(overall.mean()) if overall.size else 0.0,
            "unfinished": int(np.isnan(jobs.completed_at).sum()),
        },
        series={
            "submitted_seconds": _whole(jobs.submitted_at),
            "waiting_seconds": _whole(jobs.waiting_seconds),
            "first_waiting_seconds": _whole(np.nan_to_num(jobs.started_at - jobs.submitted_at, nan=-1.0)),
            "jct_seconds": _whole(np.nan_to_num(jobs.completed_at - jobs.submitted_at, nan=-1.0)),
            "borrowers": [] if loans is None else [float(row) for row in loans.borrowers.tolist()],
            "usage_by_hour": [round(float(one), 4) for one in overall],
            "on_loan_usage_by_day": on_loan_usage_by_day(outcome),
            "wanted": [float(one.wanted) for one in reclaims],
            "preempted": [float(one.preempted) for one in reclaims],
            "running": [float(one.running) for one in reclaims],
            "collateral": [float(one.collateral_gpus) for one in reclaims],
        },
    )


def overall_usage(outcome: RunOutcome, inference_servers: int, usage: FloatArray) -> FloatArray:
    """Return both clusters' share of GPUs in use in each hour until the last submission, with requests."""
    cluster, jobs = outcome.cluster, outcome.jobs
    hours = int(jobs.submitted_at.max(initial=0.0) // HOUR_SECONDS)
    if not hours or not cluster.time.size:
        return np.zeros(0)
    edges = HOUR_SECONDS * np.arange(hours + 1)
    knots = np.append(cluster.time, max(outcome.end_at, float(cluster.time[-1]), float(edges[-1])))
    running = np.concatenate(([0.0], np.cumsum(measures.gpus_used(cluster) * np.diff(knots))))
    training = np.diff(np.interp(edges, knots, running)) / HOUR_SECONDS
    per_hour = int(HOUR_SECONDS // 300.0)
    served = usage[np.arange(hours * per_hour) % usage.size].reshape(hours, per_hour).mean(axis=1)
    width = int(outcome.settings["gpus_per_server"])
    owned, inference = int(outcome.settings["servers"]) * width, inference_servers * width
    shares: FloatArray = (training + served * inference) / (owned + inference)
    return shares


def on_loan_usage_by_day(outcome: RunOutcome) -> list[float]:
    """Return the share of GPUs on loan in use on each whole day in which jobs arrive (Figure 3.11)."""
    loans = outcome.loans
    if loans is None:
        return []
    shares = []
    for day in range(int(outcome.jobs.submitted_at.max(initial=0.0) // DAY_SECONDS)):
        within = (loans.time > day * DAY_SECONDS) & (loans.time <= (day + 1) * DAY_SECONDS)
        there = float(loans.on_loan_before[within].sum()) * loans.gpus_per_server
        shares.append(round(float(loans.lent_gpus_busy[within].sum()) / there, 4) if there else 0.0)
    return shares


def _whole(values: FloatArray) -> list[float]:
    return [float(value) for value in np.round(values)]
