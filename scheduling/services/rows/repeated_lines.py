"""Limits repeated entries in a job's history: some entries, then a count."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from django.utils import timezone

from scheduling.models import Job
from scheduling.services.rows.records import record
from scheduling.services.rows.wakeups import hint

#: Entries of one kind and cause in a row; later ones are counted on the last of them.
LINES_IN_A_ROW = 3
#: Time after the first of these entries after which entries are written again.
_TOLD_ANEW_AFTER = timedelta(hours=6)
_COUNT = re.compile(r" \(and \d+ more since, .*\)$")


def record_or_count(job: Job, kind: str, message: str, **detail: Any) -> None:
    """Add an entry to the job's history, or count it on the last of several equal entries."""
    now = timezone.now()
    lines = job.events.filter(kind=kind, happened_at__gt=now - _TOLD_ANEW_AFTER)
    recent = lines.order_by("-id")[:LINES_IN_A_ROW]
    alike = [line for line in recent if _cause(line.message) == _cause(message)]
    if len(alike) < LINES_IN_A_ROW:
        record(job, kind, message, **detail)
        return
    last = alike[0]
    times = last.detail.get("times", 1) + 1
    more = f" (and {times - 1} more since, the last at {now:%H:%M:%S} UTC)"
    last.message = _COUNT.sub("", last.message) + more
    last.detail = {**last.detail, "times": times, "last_at": now.isoformat()}
    last.save(update_fields=["message", "detail"])
    hint(f"job:{job.pk}", kind="changed")


def _cause(message: str) -> str:
    """Return the text of an entry without numbers such as generations, ports and iterations."""
    return re.sub(r"\d+", "#", _COUNT.sub("", message))
