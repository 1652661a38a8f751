"""What is kept of a run: how a job fared under random failures, or promises under a few."""

from __future__ import annotations

from research.gemini.failing_job import FailingJob, JobUnderFailures
from research.gemini.points.sources import Tier
from research.store import RunResult, short_summary
from simulation.outcome import RunOutcome


def result_of(job: JobUnderFailures, seed: int) -> RunResult:
    """Run, and keep the share of time that was useful, failures, recoveries by tier, and what was lost.

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
    """The summary of a simulation, what each promise kept for failures, and from where jobs recovered."""
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
