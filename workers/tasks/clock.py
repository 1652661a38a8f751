"""The scheduler of the periodic tasks."""

from __future__ import annotations

from celery.beat import PersistentScheduler


class Clock(PersistentScheduler):
    """Celery's scheduler, which sleeps until a task is due.

    Celery's own wakes 10 ms early and then computes until the time has come: with several tasks a second,
    two per cent of a core.
    """

    def adjust(self, n: float | None, drift: float = 0.0) -> float | None:
        """Return for how many seconds to sleep if the next task is due in ``n``."""
        adjusted: float | None = super().adjust(n, drift)
        return adjusted
