"""Durations such as `20m` and `1h30m`, and deadlines, which are durations or moments."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from punctual.errors import InvalidInputError

_UNIT_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_UNIT_WORDS = {
    "w": "w", "week": "w", "weeks": "w",
    "d": "d", "day": "d", "days": "d",
    "h": "h", "hr": "h", "hour": "h", "hours": "h",
    "m": "m", "min": "m", "minute": "m", "minutes": "m",
    "s": "s", "sec": "s", "second": "s", "seconds": "s",
}  # fmt: skip
_ORDER = "wdhms"
_SHOWN_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*", re.ASCII)
_LONGEST = timedelta(days=3660)
_HINT = "write a duration such as 90s, 20m, 1h30m or 2d"


def parse_duration(text: str) -> timedelta:
    """Parse a duration: numbers with units w, d, h, m, s, largest first, each unit at most once.

    Raises:
        InvalidInputError: it cannot be parsed, is not positive, or is longer than ten years.
    """
    seconds, position, last = 0.0, 0, -1
    while position < len(text):
        part = _PART.match(text, position)
        unit = _UNIT_WORDS.get(part.group(2).lower()) if part else None
        if part is None or unit is None:
            raise InvalidInputError(f"“{_shorten(text)}” is not a duration", hint=_HINT)
        if _ORDER.index(unit) <= last:
            raise InvalidInputError(
                f"“{_shorten(text)}” does not name its units from large to small", hint=_HINT
            )
        last = _ORDER.index(unit)
        seconds += float(part.group(1)) * _UNIT_SECONDS[unit]
        position = part.end()
    if last < 0:
        raise InvalidInputError("a duration is empty", hint=_HINT)
    return _checked(seconds, text)


def _checked(seconds: float, text: str) -> timedelta:
    if seconds > _LONGEST.total_seconds():
        raise InvalidInputError(f"“{_shorten(text)}” is longer than ten years", hint=_HINT)
    if seconds <= 0:
        raise InvalidInputError(f"“{_shorten(text)}” is not longer than zero", hint=_HINT)
    return timedelta(seconds=seconds)


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units, as the platform's texts do: `1 h 30 min`, `4 min 5 s`,
    `0.4 s`; negative ones with a minus."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds % 1 else f"{seconds:.0f} s"
    whole = round(seconds)
    for size, unit, part_size, part_unit in _SHOWN_UNITS:
        if whole >= size:
            part = whole % size // part_size
            return f"{whole // size} {unit} {part} {part_unit}" if part else f"{whole // size} {unit}"
    return f"{whole} s"


def parse_time(text: str) -> datetime:
    """Parse an RFC 3339 time. One without an offset is refused, because it is ambiguous.

    Raises:
        InvalidInputError: it cannot be parsed or has no offset from UTC.
    """
    try:
        moment = datetime.fromisoformat(text.strip().upper())  # RFC 3339 also allows `t` and `z`
    except ValueError:
        raise InvalidInputError(
            f"“{_shorten(text)}” is not a time", hint="write it as 2030-01-31T14:30Z"
        ) from None
    return utc(moment)


def utc(moment: datetime) -> datetime:
    """Return the same moment in UTC.

    Raises:
        InvalidInputError: it has no time zone, or is out of range in UTC.
    """
    if moment.tzinfo is None:
        raise InvalidInputError(
            f"the time {moment.isoformat()} names no time zone", hint="add Z for UTC, or +02:00"
        )
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise InvalidInputError(f"the time {moment.isoformat()} is out of range") from None


def parse_deadline(
    value: str | float | timedelta | datetime, *, named: str = "deadline"
) -> timedelta | datetime:
    """Parse a deadline: a duration from now (text, seconds or timedelta) or a moment (text or datetime).

    ``named``: its name in error messages, if it is not a deadline.

    Raises:
        InvalidInputError: it is neither, not positive, or has no time zone.
    """
    if isinstance(value, datetime):
        return utc(value)
    if isinstance(value, timedelta):
        return _checked(value.total_seconds(), str(value))
    if isinstance(value, str):
        looks_like_a_time = re.match(r"\s*\d{4}-?\d{2}-?\d{2}", value, re.ASCII) is not None
        return parse_time(value) if looks_like_a_time else _parse_relative(value, named)
    if value != value:
        raise InvalidInputError(f"bad {named}: it is not a number", hint=_HINT)
    return _checked(float(value), f"{value} seconds")


def _parse_relative(text: str, named: str) -> timedelta:
    try:
        return parse_duration(text)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"bad {named}: {error.message}", hint=f"{_HINT}, or a time such as 2030-01-31T14:30Z"
        ) from None


def deadline_fields(value: str | float | timedelta | datetime | None) -> dict[str, str | float]:
    """Return the members of a job's body for the deadline: `deadline_seconds`, `deadline_at` or none."""
    if value is None:
        return {}
    deadline = parse_deadline(value)
    if isinstance(deadline, timedelta):
        return {"deadline_seconds": deadline.total_seconds()}
    return {"deadline_at": deadline.isoformat().replace("+00:00", "Z")}


def _shorten(text: str) -> str:
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= 40 else printable[:39] + "…"
