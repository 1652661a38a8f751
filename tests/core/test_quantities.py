"""Durations as sentences write them."""

from __future__ import annotations

import pytest

from scheduling.core.question.quantities import duration_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (4.25, "4.25 s"),
        (59.97, "1 min"),
        (515.0, "8 min 35 s"),
        (3599.8, "1 h"),
        (11_100, "3 h 5 min"),
        (86_700, "1 d"),
        (187_200, "2 d 4 h"),
        (-90, "-1 min 30 s"),
    ],
)
def test_durations_are_printed_in_two_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
