"""The stored part of a run: results of a job under random failures, or of promises under a few."""

from __future__ import annotations

from research.gemini.failing_job import FailingJob, JobUnderFailures
from research.gemini.points.sources import Tier
from research.store import RunResult, short_summary
from simulation.outcome import RunOutcome


def result_of(job: JobUnderFailures, seed: int) -> RunResult:
    """Run, and return the useful share of time, failures, recoveries by tier, and losses.

    ``series``: ``downtime_seconds`` and ``lost_iterations`` of every recovery.
    """
    record = FailingJob(job, seed).run()
    return RunResult(
        summary={"effective_share": record.effective_share},
        facts={
            "failures": record.failures,
            "recoveries": len(record.lost_iterations),
            "begun_anew": record.during_recovery,
            "from_local_memory": record.tiers[Tier.LOCAL],
            "from_peers": record.tiers[Tier.PEER],
            "from_durable": record.tiers[Tier.DURABLE],
            "most_iterations_lost": max(record.lost_iterations, default=0),
        },
        series={
            "downtime_seconds": record.downtime_seconds,
            "lost_iterations": [float(one) for one in record.lost_iterations],
        },
    )


def of_promises(outcome: RunOutcome, slack_seconds: float) -> RunResult:
    """Return the summary of a simulation, each promise's slack for failures, and sources of recoveries."""
    return RunResult(
        summary=short_summary(outcome),
        facts={
            "slack_seconds": slack_seconds,
            "failures": outcome.counts["failures"],
            "from_memory": outcome.counts.get("recoveries_from_memory", 0),
            "from_durable": outcome.counts.get("recoveries_from_durable", 0),
        },
        series={},
    )
