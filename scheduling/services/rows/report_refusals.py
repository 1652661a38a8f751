"""What becomes of items of a report that cannot be taken: logged, told to the job's people, and never tried
again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import structlog
from django.db import transaction

from cluster.models import Agent
from punctual.protocol.limits import clean_text
from punctual.protocol.reports import RefusedItem
from scheduling.choices import JobEventKind
from scheduling.models import Job, JobEvent
from scheduling.selectors.agents.own_work import OwnWork
from scheduling.services.rows.records import record

log = structlog.get_logger(__name__)

#: Notes in one job's history; what is refused beyond is in the log alone.
NOTES_OF_A_JOB = 20
#: Parts of a report that say what is, not what has happened: of these a job's history tells once.
STANDING_PARTS = frozenset({"memory_store", "workers"})
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
    by_place: dict[tuple[str, str], Counter[str]] = {}
    for item in refused:
        if item.job is not None and own.knows(item.job):
            by_place.setdefault((item.job, item.part), Counter())[item.reason] += 1
    for (job_id, part), reasons in by_place.items():
        start = f"A part of a report from {agent.server.name} was dropped ({part}: "
        if part in STANDING_PARTS:
            # The next report says the same again, until the server has obeyed.
            first, *_others = reasons
            more = f" and {reasons.total() - 1} more" if reasons.total() > 1 else ""
            note(job_id, f"{start}{first}{more}).", unless=start)
        else:
            for reason in reasons:
                note(job_id, f"{start}{reason}).")


@transaction.atomic
def note(job_id: str, message: str, *, unless: str = "") -> None:
    """Add a line to the job's history, unless it has enough of the kind, or one that starts with `unless`."""
    job = Job.objects.filter(pk=job_id).first()
    known = JobEvent.objects.filter(job=job_id, kind=JobEventKind.REPORT_REFUSED)
    if job is None or known.count() >= NOTES_OF_A_JOB:
        return
    if unless and known.filter(message__startswith=clean_text(unless, 1000)).exists():
        return
    record(job, JobEventKind.REPORT_REFUSED, clean_text(message, 1000))
