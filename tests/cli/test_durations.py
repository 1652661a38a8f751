"""Durations and deadlines as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from punctual.client.durations import deadline_fields, format_duration, parse_deadline, parse_duration
from punctual.errors import InvalidInputError

UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20m", 1200),
        ("90s", 90),
        ("1h30m", 5400),
        (" 1h 30m ", 5400),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("2 days 3 hours", 183_600),
        ("1W", 604_800),
        ("0.5s", 0.5),
    ],
)
def test_common_ways_to_write_a_duration_are_understood(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "20", "m", "-20m", "20m1h", "20m20m", "0s", "20x", "1e3s", "١m", "99999999w", "20m!", "nan s"],
)
def test_an_invalid_duration_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_duration(text)
    assert "20m" in (refused.value.hint or "")


@given(st.lists(st.sampled_from(list(UNITS)), min_size=1, max_size=5, unique=True), st.data())
def test_units_from_large_to_small_add_up(units: list[str], data: st.DataObject) -> None:
    ordered = sorted(units, key=lambda unit: -UNITS[unit])
    numbers = [data.draw(st.integers(min_value=1, max_value=100)) for _ in ordered]
    text = "".join(f"{number}{unit}" for number, unit in zip(numbers, ordered, strict=True))

    assert parse_duration(text).total_seconds() == sum(
        number * UNITS[unit] for number, unit in zip(numbers, ordered, strict=True)
    )


@given(st.text(max_size=30))
def test_any_text_is_either_a_positive_duration_or_refused(text: str) -> None:
    try:
        duration = parse_duration(text)
    except InvalidInputError:
        return
    assert duration > timedelta(0)


@given(st.integers(min_value=1, max_value=10**8))
def test_formatted_durations_parse_back_within_their_smallest_unit(seconds: int) -> None:
    smallest_shown = 3_600 if seconds >= 86_400 else 60 if seconds >= 3_600 else 1
    assert abs(parse_duration(format_duration(seconds)).total_seconds() - seconds) < smallest_shown


def test_a_deadline_is_a_duration_or_a_moment() -> None:
    summer = timezone(timedelta(hours=2))
    assert parse_deadline("20m") == timedelta(minutes=20)
    assert parse_deadline(90) == timedelta(seconds=90)
    assert parse_deadline("2030-01-31T14:30+02:00") == datetime(2030, 1, 31, 12, 30, tzinfo=UTC)
    assert parse_deadline(datetime(2030, 1, 31, 14, 30, tzinfo=summer)) == datetime(
        2030, 1, 31, 12, 30, tzinfo=UTC
    )


def test_deadlines_are_sent_as_seconds_from_receipt_or_as_rfc_3339() -> None:
    assert deadline_fields("1h") == {"deadline_seconds": 3600}
    assert parse_deadline("2030-01-31t14:30:00z") == datetime(2030, 1, 31, 14, 30, tzinfo=UTC)
    assert deadline_fields("2030-01-31 14:30Z") == {"deadline_at": "2030-01-31T14:30:00Z"}
    assert deadline_fields(None) == {}


@pytest.mark.parametrize(
    "text", ["2030-01-31T14:30", "2030-01-31", "2030-13-31T14:30Z", "tomorrow", "0001-01-01T00:00+14:00"]
)
def test_a_moment_without_a_time_zone_or_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_deadline(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5, 0, timedelta(0)])
def test_numbers_that_are_no_future_time_are_refused(value: float | timedelta) -> None:
    with pytest.raises(InvalidInputError):
        parse_deadline(value)
