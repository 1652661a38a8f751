"""Handles refused items of reports: logs them, records them in the job's history, and never tries them
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

#: Limit of such entries in one job's history; further refusals are only logged.
NOTES_OF_A_JOB = 20
#: Parts of a report that describe a state, not an event: a job's history records a refusal once.
STANDING_PARTS = frozenset({"memory_store", "workers"})
#: Limit of refused items in an answer and in the log.
TOLD_ITEMS = 50


class RefusedEvent(Exception):
    """An event is impossible; the text is the reason."""


def note_refusals(agent: Agent, refused: Sequence[RefusedItem]) -> None:
    """Log refused items, and record them in the history of jobs of the agent's server."""
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
            # The next report repeats the same until the server has applied its desired state.
            first, *_others = reasons
            more = f" and {reasons.total() - 1} more" if reasons.total() > 1 else ""
            note(job_id, f"{start}{first}{more}).", unless=start)
        else:
            for reason in reasons:
                note(job_id, f"{start}{reason}).")


@transaction.atomic
def note(job_id: str, message: str, *, unless: str = "") -> None:
    """Add an entry to the job's history unless the limit is reached or one starts with `unless`."""
    job = Job.objects.filter(pk=job_id).first()
    known = JobEvent.objects.filter(job=job_id, kind=JobEventKind.REPORT_REFUSED)
    if job is None or known.count() >= NOTES_OF_A_JOB:
        return
    if unless and known.filter(message__startswith=clean_text(unless, 1000)).exists():
        return
    record(job, JobEventKind.REPORT_REFUSED, clean_text(message, 1000))
