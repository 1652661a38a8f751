"""One run in numbers: the JSON summary of `manage.py simulate`."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from scheduling.core.question.snapshot import FloatArray, ServiceClass
from simulation.outcome import JobEnd, JobOutcomes, RunOutcome
from simulation.reports import measures
from simulation.reports.lending import lending_summary
from simulation.reports.measures import Fate

PERCENTILES = (50, 75, 95, 99)


def summary(outcome: RunOutcome) -> dict[str, Any]:
    """Return the metrics of a run as plain JSON values. What does not apply is None, a count of nothing 0.

    Workload: ``jobs``, all submitted; ``slo_jobs`` and ``best_effort_jobs`` of those classes. Of ``slo``
    jobs, ``admitted`` were accepted and ``declined`` refused; the rest had no verdict.

    Deadlines: ``deadlines_met`` are ``slo`` jobs completed by their deadline whose promise did not become
    void; ``deadline_satisfactory_ratio`` is their share of all ``slo`` jobs, so declined jobs count as misses
    (ElasticFlow section 6.1). ``deadlines_met_bound``: an upper bound for any schedule with knowledge of the
    future, if the run computed it. ``admitted_late`` are promised jobs of any class that were not on time,
    without those whose promise became void; ``voided`` counts these by reason. A job that a stopped run left
    unfinished before its deadline is neither met nor late. ``fates`` gives, for both classes with a deadline,
    how many jobs were met, missed, declined, void and open; each row adds up to its class.

    Waiting and running, in seconds, of completed jobs of any class: ``mean_jct_seconds`` and
    ``jct_seconds_p50`` to ``p99`` from submission to completion, ``mean_queuing_seconds`` and
    ``queuing_seconds_p50`` to ``p99`` from submission to the first start; ``mean_waiting_seconds`` and
    ``waiting_seconds_p50`` to ``p99`` all time without GPUs, after preemptions too (Lyra's queuing time);
    ``best_effort_mean_jct_seconds`` completion times of best-effort jobs alone. ``makespan_seconds``: first
    submission to last completion.

    Cluster: ``mean_gpu_utilisation`` is GPU-seconds held by jobs over GPU-seconds available;
    ``mean_cluster_efficiency`` the time average of the sum of all speed-ups over GPUs (ElasticFlow section
    6.1), ``mean_cluster_efficiency_first_100_hours`` the same of that time alone. ``simulated_seconds``:
    first planning instant to the end of the run.

    Changes: ``rescales``, ``migrations`` and ``preemptions`` are counts; ``preemption_ratio`` is preemptions
    over jobs submitted (Lyra section 3.7). ``jobs_caught_by_ends``: jobs still on a server when it left at
    its known end.

    Lending (Lyra sections 3.4 and 3.7); usage is until the last submission: ``training_gpu_usage``, share in
    use of the GPUs available to training; ``owned_gpu_usage`` and ``on_loan_gpu_usage`` of its parts;
    ``overall_gpu_usage`` of both clusters, requests included. ``loan_operations``; ``servers_on_loan_mean``
    and ``_max``. ``shortfall_servers_max``: most servers that inference needed and did not have,
    ``shortfall_periods``: periods with such a shortfall. ``reclaim_operations``, ``reclaimed_servers``,
    ``reclaim_preemptions`` (jobs preempted by them), ``reclaim_preempted_share`` of the jobs running (mean
    over operations), ``reclaim_collateral`` (GPUs that preempted jobs gave up elsewhere, over GPUs asked
    for), ``reclaim_idle_share`` and ``reclaim_flexible_share`` (idle servers returned, and those returned by
    shrinking alone, over servers asked for), ``reclaim_ahead_share`` (asked for by the forecast before usage
    rose, over operations).

    The program: ``decisions`` taken and their wall time ``decision_ms_p50`` and ``p99`` in milliseconds;
    ``wall_seconds`` of the event loop alone, ``setup_seconds`` of imports and compilation,
    ``peak_memory_bytes``. ``interrupted``: the run was stopped early; ``broken``: why promised jobs were
    late; ``settings``: the run's settings.
    """
    return {
        **_workload(outcome),
        **_deadlines(outcome),
        **_times(outcome.jobs),
        **_cluster(outcome),
        **_changes(outcome),
        **lending_summary(outcome),
        **_program(outcome),
        "interrupted": outcome.interrupted,
        "notes": list(outcome.notes),
        "broken": dict(outcome.broken),
        "settings": {name: _plain(value) for name, value in outcome.settings.items()},
    }


def _workload(outcome: RunOutcome) -> dict[str, Any]:
    jobs = outcome.jobs
    slo = measures.has_class(jobs, ServiceClass.SLO)
    declined = measures.has_end(jobs, JobEnd.DECLINED)
    return {
        "policy": outcome.settings.get("policy"),
        "trace": outcome.settings.get("trace"),
        "seed": outcome.settings.get("seed"),
        "jobs": len(jobs.job_id),
        "slo_jobs": int(slo.sum()),
        "best_effort_jobs": int(measures.has_class(jobs, ServiceClass.BEST_EFFORT).sum()),
        "admitted": int((slo & measures.is_decided(jobs) & ~declined).sum()),
        "declined": int((slo & declined).sum()),
    }


def _deadlines(outcome: RunOutcome) -> dict[str, Any]:
    jobs = outcome.jobs
    by_fate = measures.fates(outcome)
    slo = measures.has_class(jobs, ServiceClass.SLO)
    met, submitted = int((slo & by_fate[Fate.MET]).sum()), int(slo.sum())
    late = measures.is_promised(jobs) & by_fate[Fate.MISSED]
    classes = (ServiceClass.SLO, ServiceClass.SOFT)
    return {
        "deadlines_met": met,
        "deadline_satisfactory_ratio": met / submitted if submitted else None,
        "deadlines_met_bound": outcome.counts.get("deadlines_met_bound"),
        "admitted_late": int(late.sum()),
        "voided": dict(sorted(Counter(reason for reason in jobs.void_reason if reason).items())),
        "fates": {
            each.value: {
                fate.value: int((measures.has_class(jobs, each) & rows).sum())
                for fate, rows in by_fate.items()
            }
            for each in classes
        },
    }


def _times(jobs: JobOutcomes) -> dict[str, Any]:
    completion, queuing = measures.completion_seconds(jobs), measures.queuing_seconds(jobs)
    waiting = measures.waiting_seconds(jobs)
    completed = measures.has_end(jobs, JobEnd.COMPLETED)
    best_effort = completed & measures.has_class(jobs, ServiceClass.BEST_EFFORT)
    makespan = (
        float(jobs.completed_at[completed].max() - jobs.submitted_at.min()) if completed.any() else None
    )
    return {
        "mean_jct_seconds": _mean(completion),
        **{f"jct_seconds_p{share}": _percentile(completion, share) for share in PERCENTILES},
        "mean_queuing_seconds": _mean(queuing),
        **{f"queuing_seconds_p{share}": _percentile(queuing, share) for share in PERCENTILES},
        "mean_waiting_seconds": _mean(waiting),
        **{f"waiting_seconds_p{share}": _percentile(waiting, share) for share in PERCENTILES},
        "best_effort_mean_jct_seconds": _mean((jobs.completed_at - jobs.submitted_at)[best_effort]),
        "makespan_seconds": makespan,
    }


def _cluster(outcome: RunOutcome) -> dict[str, Any]:
    seconds = measures.span_seconds(outcome)
    efficiency = outcome.cluster.cluster_efficiency
    return {
        "mean_gpu_utilisation": measures.mean_utilisation(outcome),
        "mean_cluster_efficiency": measures.time_average(efficiency, seconds),
        "mean_cluster_efficiency_first_100_hours": measures.time_average(
            efficiency, measures.first_hours(outcome, 100.0)
        ),
    }


def _changes(outcome: RunOutcome) -> dict[str, Any]:
    jobs, counts = outcome.jobs, outcome.counts
    preemptions = counts.get("preemptions", int(jobs.preemptions.sum()))
    submitted = len(jobs.job_id)
    return {
        "rescales": counts.get("rescales", int(jobs.rescales.sum())),
        "migrations": counts.get("migrations", int(jobs.migrations.sum())),
        "preemptions": preemptions,
        "preemption_ratio": preemptions / submitted if submitted else None,
        "jobs_caught_by_ends": counts.get("jobs_caught_by_ends", 0),
    }


def _program(outcome: RunOutcome) -> dict[str, Any]:
    taken = measures.decision_milliseconds(outcome)
    milliseconds = taken[np.isfinite(taken)]
    return {
        "simulated_seconds": _plain(measures.simulated_seconds(outcome)),
        "wall_seconds": _plain(outcome.wall_seconds),
        "setup_seconds": _plain(outcome.setup_seconds),
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "decisions": outcome.counts.get("decisions", int(milliseconds.size)),
        "decision_ms_p50": _percentile(milliseconds, 50),
        "decision_ms_p99": _percentile(milliseconds, 99),
    }


def _mean(values: FloatArray) -> float | None:
    return float(values.mean()) if values.size else None


def _percentile(values: FloatArray, share: int) -> float | None:
    return float(np.percentile(values, share)) if values.size else None


def _plain(value: str | int | float | bool) -> str | int | float | bool | None:
    """Return a value for JSON, which has neither infinity nor NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
