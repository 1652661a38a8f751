"""Declines jobs without a decision of the planner, because of their speed or their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from scheduling.choices import GenerationState, JobState
from scheduling.models import Generation, Job
from scheduling.services.generations.generations import let_go
from scheduling.services.rows.records import Move, move, move_all
from scheduling.stored_verdict import AnswerCode, declined


def decline(job: Job, code: AnswerCode, reason: str, now: datetime) -> None:
    """Decline an undecided job for good. The caller holds the cluster's row."""
    job.verdict = declined(code, reason).as_json()
    job.decided_at = now
    let_go(job, "declined")
    job.save(update_fields=["verdict", "decided_at"])
    move(job, JobState.DECLINED, reason, code=code)


def decline_all(
    refusals: Sequence[tuple[Job, str]],
    code: AnswerCode,
    now: datetime,
    tiers: Mapping[str, Mapping[str, Any] | None] = MappingProxyType({}),
) -> None:
    """Call `decline` for many jobs with reasons, in a few statements for those without workers. ``tiers``:
    the tiers of the job's verdict, by job id."""
    jobs = [job.pk for job, _ in refusals]
    begun = Generation.objects.filter(job__in=jobs).exclude(state=GenerationState.RETIRED)
    running = set(begun.values_list("job_id", flat=True)) if jobs else set()
    moves = []
    for job, reason in refusals:
        job.verdict = replace(declined(code, reason), tiers=tiers.get(job.pk)).as_json()
        job.decided_at = now
        if job.pk in running:
            let_go(job, "declined")
        moves.append(Move(job, JobState.DECLINED, reason, {"code": code}))
    move_all(moves, fields=["verdict", "decided_at"])
