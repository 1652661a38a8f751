"""Moments of a plan in the calendar. What lies beyond it is never, and never is no date."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

#: How far off a deadline may be, asked for or offered.
LONGEST_DEADLINE = timedelta(days=3650)
#: The last moment that is told as a date. Python's calendar ends in the year 9999; time zones need some room.
_LAST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


def moment(seconds: float | None) -> datetime | None:
    """The date of so many Unix seconds; None for never: infinity, no number, or beyond the calendar."""
    if seconds is None or not math.isfinite(seconds) or abs(seconds) > _LAST:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def rfc3339(seconds: float | None) -> str | None:
    """The same as text in UTC."""
    at = moment(seconds)
    return None if at is None else at.isoformat().replace("+00:00", "Z")
