"""A clock that tests advance: "now" for all services, and the default times of rows."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from django.apps import apps
from django.db.models import Value
from django.utils import timezone

from scheduling.services.agents import lease_clock

#: Every test begins at the same moment, so that no outcome depends on when it runs.
BEGINS_AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
_REAL_NOW = timezone.now
_present: SimulatedTime | None = None


class SimulatedTime:
    """Stands still until it is advanced; each row is made a microsecond later, so that rows have an order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, begins_at: datetime = BEGINS_AT) -> None:
        self._now = begins_at
        monkeypatch.setattr(sys.modules[__name__], "_present", self)
        monkeypatch.setattr(timezone, "now", self.now)
        monkeypatch.setattr(lease_clock, "now", self.now)
        monkeypatch.setattr(lease_clock, "clock", lambda: Value(self._now))
        monkeypatch.setattr(
            lease_clock, "read", lambda: lease_clock.Reading(self._now, "simulated", self._now.timestamp())
        )
        for field in _fields_that_default_to_now():
            monkeypatch.setattr(field, "default", self._time_of_a_row)
            monkeypatch.setitem(field.__dict__, "_get_default", self._time_of_a_row)

    def now(self) -> datetime:
        return self._now

    def turn(self, seconds: float) -> None:
        """Advance the clock."""
        self._now += timedelta(seconds=seconds)

    def _time_of_a_row(self) -> datetime:
        self._now += timedelta(microseconds=1)
        return self._now


def let_pass(seconds: float) -> None:
    """Advance the clock of the present test."""
    assert _present is not None, "the test runs on the real clock"
    _present.turn(seconds)


@cache
def _fields_that_default_to_now() -> tuple[Any, ...]:
    return tuple(
        field for model in apps.get_models() for field in model._meta.fields if field.default is _REAL_NOW
    )
