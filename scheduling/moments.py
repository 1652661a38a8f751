"""Times of a plan as dates. A time beyond the calendar means never and has no date."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

#: Largest distance of a deadline, requested or offered.
LONGEST_DEADLINE = timedelta(days=3650)
#: The last time shown as a date. Python's calendar ends in the year 9999, and time zones need a margin.
_LAST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


def moment(seconds: float | None) -> datetime | None:
    """Return the date of Unix seconds; None for never: infinity, not a number, or beyond the calendar."""
    if seconds is None or not math.isfinite(seconds) or abs(seconds) > _LAST:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def rfc3339(seconds: float | None) -> str | None:
    """Return the same as RFC 3339 text in UTC."""
    at = moment(seconds)
    return None if at is None else at.isoformat().replace("+00:00", "Z")
