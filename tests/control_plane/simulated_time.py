"""A clock that a test turns: everything that the services read as "now", and every default of a row."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.apps import apps
from django.utils import timezone

from scheduling.services import lease_clock


class SimulatedTime:
    """Stands still until it is turned. ``second``: of the next minute, at which it begins; None: now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, second: float | None = None) -> None:
        self._now = timezone.now()
        if second is not None:
            self._now = self._now.replace(second=0, microsecond=0) + timedelta(minutes=1, seconds=second)
        real = timezone.now
        monkeypatch.setattr(timezone, "now", self.now)
        monkeypatch.setattr(lease_clock, "now", self.now)
        monkeypatch.setattr(
            lease_clock, "read", lambda: lease_clock.Reading(self._now, "simulated", self._now.timestamp())
        )
        for model in apps.get_models():
            for field in model._meta.fields:
                if field.default is real:
                    monkeypatch.setattr(field, "default", self.now)
                    monkeypatch.setitem(field.__dict__, "_get_default", self.now)

    def now(self) -> datetime:
        return self._now

    def turn(self, seconds: float) -> None:
        """Let time pass."""
        self._now += timedelta(seconds=seconds)
