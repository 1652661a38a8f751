"""The lease of this worker's server: until when the server may work, as reported by its agent.

The launcher and the first process of the sandbox end a worker whose lease is over. If the whole machine was
suspended, they were frozen together with the worker. The worker therefore also checks before each iteration.
"""

from __future__ import annotations

import threading
import time

from workers.runtime.failures import WorkerFailureError

#: How long to wait for a renewal: it may be unread in the socket of a worker that was busy.
PATIENCE_SECONDS = 1.0


class ServerLease:
    """The newest reported end of the lease, by CLOCK_BOOTTIME, which advances while the machine sleeps.

    Before the first report the lease has no end.
    """

    def __init__(self) -> None:
        self._told = threading.Condition()
        self._ends_at: float | None = None

    def update(self, ends_at: float) -> None:
        """Store the end that the agent reports. Raise TypeError or ValueError if it is not a number."""
        with self._told:
            self._ends_at = float(ends_at)
            self._told.notify_all()

    def require(self) -> None:
        """Return if the lease runs.

        Raises:
            WorkerFailureError: the lease is over; another server may already train this job.
        """
        if self._runs():
            return
        with self._told:
            if not self._told.wait_for(self._runs, PATIENCE_SECONDS):
                raise WorkerFailureError("lease_ended", "the lease of this worker's server is over")

    def _runs(self) -> bool:
        return self._ends_at is None or time.clock_gettime(time.CLOCK_BOOTTIME) < self._ends_at
