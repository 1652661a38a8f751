"""Declining a job that the planner never decided: its speed or its rows did not let it."""

from __future__ import annotations

from datetime import datetime

from scheduling.choices import JobState
from scheduling.models import Job
from scheduling.services.generations import let_go
from scheduling.services.records import move
from scheduling.stored_verdict import AnswerCode, declined


def decline(job: Job, code: AnswerCode, reason: str, now: datetime) -> None:
    """Tell an undecided job a no that is final. The caller holds the cluster's row."""
    job.verdict = declined(code, reason).as_json()
    job.decided_at = now
    let_go(job, "declined")
    job.save(update_fields=["verdict", "decided_at"])
    move(job, JobState.DECLINED, reason, code=code)
