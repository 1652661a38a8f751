"""What becomes of items of a report that cannot be taken: logged, told to the job's people, and never tried
again."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from django.db import transaction

from cluster.models import Agent
from punctual.protocol.limits import clean_text
from punctual.protocol.reports import RefusedItem
from scheduling.choices import JobEventKind
from scheduling.models import Job, JobEvent
from scheduling.selectors.own_work import OwnWork
from scheduling.services.records import record

log = structlog.get_logger(__name__)

#: Notes in one job's history; what is refused beyond is in the log alone.
NOTES_OF_A_JOB = 20
#: Refused items that an answer names and the log tells one by one.
TOLD_ITEMS = 50


class RefusedEvent(Exception):
    """An event says what cannot be; its text is the reason."""


def note_refusals(agent: Agent, refused: Sequence[RefusedItem]) -> None:
    """Log refused items, and write them into the history of jobs that the agent's server was given."""
    for item in refused[:TOLD_ITEMS]:
        log.warning("item of a report refused", server=agent.server.name, **item.to_json())
    claimed = {item.job for item in refused if item.job is not None and "\0" not in item.job}
    own = OwnWork(agent.server_id, claimed)
    told: set[tuple[str, str]] = set()
    for item in refused:
        if item.job is None or not own.knows(item.job) or (item.job, item.reason) in told:
            continue
        told.add((item.job, item.reason))
        note(
            item.job, f"A part of a report from {agent.server.name} was dropped ({item.part}: {item.reason})."
        )


@transaction.atomic
def note(job_id: str, message: str) -> None:
    """Add a line to the job's history, unless it has enough of the kind."""
    job = Job.objects.filter(pk=job_id).first()
    if (
        job is None
        or JobEvent.objects.filter(job=job, kind=JobEventKind.REPORT_REFUSED).count() >= NOTES_OF_A_JOB
    ):
        return
    record(job, JobEventKind.REPORT_REFUSED, clean_text(message, 1000))
