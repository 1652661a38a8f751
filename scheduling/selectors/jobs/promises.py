"""State of promises: one definition for tiles, charts, the summary and the monitoring system."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from scheduling.choices import PLANNED_STATES, PromiseOutcome
from scheduling.models import Job

UNFINISHED = Q(state__in=PLANNED_STATES)
#: The deadline is still to come.
OPEN = UNFINISHED & Q(promise_outcome=PromiseOutcome.OPEN)
#: Open, and no plan meets the deadline.
AT_RISK = OPEN & Q(at_risk=True)
#: Missed already, although the job still runs. Each counts as missed, too.
LATE = UNFINISHED & Q(promise_outcome=PromiseOutcome.MISSED)


@dataclass(frozen=True, slots=True)
class OpenPromise:
    """An open promise. ``spare_seconds``: for how long the job may pause before its present plan misses
    the deadline."""

    job_id: str
    job_name: str
    deadline_at: datetime
    spare_seconds: float


def open_promises(now: datetime) -> list[OpenPromise]:
    """Return all open promises, those with the least time to spare first."""
    found = []
    for job in Job.objects.filter(OPEN).only("name", "deadline_at", "finished_at", "plan"):
        if job.deadline_at is not None:
            spare = job.slack_seconds(now)
            found.append(OpenPromise(job.pk, job.name, job.deadline_at, 0.0 if spare is None else spare))
    return sorted(found, key=lambda promise: (promise.spare_seconds, promise.deadline_at))
