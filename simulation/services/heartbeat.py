"""Keeping a run's lease from beside the event loop: a thread writes, the loop only leaves numbers for it.

So neither a slow database slows a simulation down, nor does a long decision let its lease run out.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

import structlog
from django.db import InterfaceError, OperationalError, connection

from simulation.services.runs import ClaimedRun, run_renew

log = structlog.get_logger(__name__)

#: Two writes a second: as often as a person looks.
BEAT_SECONDS = 0.5


class RunStopped(Exception):
    """The run shall not go on."""


class CancelledByOperator(RunStopped):
    """Its operator asked for that."""


class LeaseLost(RunStopped):
    """It was given to another worker, or deleted. Nothing of it may be written any more."""


class TookTooLong(RunStopped):
    """It ran longer than a run may."""


class Heartbeat:
    """Renews the lease until it is left. ``told`` is the simulation's progress callback, and where it is
    stopped."""

    def __init__(self, claimed: ClaimedRun, *, longest_seconds: float) -> None:
        self._claimed = claimed
        self._ends_at = time.monotonic() + longest_seconds
        self._longest_seconds = longest_seconds
        self._left = threading.Event()
        self._stop: RunStopped | None = None
        self._jobs_ended = self._jobs_total = 0
        self._simulated_seconds = 0.0
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat-{claimed.run.pk}", daemon=True)

    def told(self, jobs_ended: int, jobs_total: int, simulated_seconds: float) -> None:
        """Note how far the run is. Raises RunStopped where it shall not go on."""
        self._jobs_ended, self._jobs_total = jobs_ended, jobs_total
        self._simulated_seconds = simulated_seconds
        if self._stop is not None:
            raise self._stop

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join()

    def _beat(self) -> None:
        try:
            while not self._left.wait(BEAT_SECONDS):
                try:
                    self._renew()
                except (OperationalError, InterfaceError) as problem:
                    # The lease outlasts a short absence of the database; after a long one the result is
                    # refused.
                    log.warning("simulation lease not renewed", run=self._claimed.run.pk, error=str(problem))
                    connection.close()
        except Exception:
            # Nobody renews the lease any more: the run must not go on without.
            self._stop = LeaseLost()
            raise
        finally:
            connection.close()

    def _renew(self) -> None:
        ended = self._jobs_ended
        stop = run_renew(
            self._claimed,
            jobs_ended=ended,
            jobs_total=max(self._jobs_total, ended),
            simulated_seconds=self._simulated_seconds,
        )
        if stop is None:
            self._stop = LeaseLost()
        elif stop:
            self._stop = CancelledByOperator()
        elif time.monotonic() > self._ends_at:
            self._stop = TookTooLong(
                f"It ran for {self._longest_seconds:.0f} s, longer than a run may; take fewer jobs."
            )
