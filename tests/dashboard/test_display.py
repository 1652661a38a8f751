"""Formats of times and shares."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from dashboard.templatetags.punctual_display import (
    duration,
    duration_text,
    milliseconds,
    percent,
    slack,
    when,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (59.6, "1 min"),
        (65, "1 min 5 s"),
        (599, "9 min 59 s"),
        (605, "10 min"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
        (-65, "1 min 5 s"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@given(st.floats(0, 1e8), st.floats(0, 1e8))
def test_durations_never_say_less_for_more(one: float, other: float) -> None:
    def spoken(text: str) -> int:
        lengths = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
        words = text.split()
        return sum(int(count) * lengths[unit] for count, unit in zip(words[::2], words[1::2], strict=True))

    smaller, larger = sorted((one, other))
    assert spoken(duration_text(smaller)) <= spoken(duration_text(larger))


def test_a_time_is_relative_with_the_exact_one_in_its_title() -> None:
    moment = timezone.now() + timedelta(minutes=12, seconds=30)
    text = str(when(moment))
    assert ">in 12 min<" in text
    assert moment.strftime("%Y-%m-%d %H:%M:%S UTC") in text
    assert when(None) == "–"


def test_slack_says_late_instead_of_a_minus_sign() -> None:
    assert "5 s late" in str(slack(-5))
    assert "late" not in str(slack(5))
    assert slack(None) == slack(float("inf")) == "–"


def test_almost_done_is_not_done() -> None:
    assert (percent(0.999), percent(1.0), percent(0.0), percent(None)) == ("99%", "100%", "0%", "0%")
    assert duration(None) == "–"


def test_a_time_of_microseconds_is_not_rounded_to_nothing() -> None:
    assert [milliseconds(seconds) for seconds in (0.0, 4e-6, 2.2e-5, 1e-4, 0.0021)] == [
        "0.0 ms", "4 µs", "22 µs", "0.1 ms", "2.1 ms",
    ]  # fmt: skip
