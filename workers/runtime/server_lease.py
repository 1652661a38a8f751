"""Until when this worker's server may work, as its agent tells.

Others end a worker whose lease is over: its launcher, and the first process of its sandbox. They may have
been frozen together with it, as a whole machine is that stands still for a while. So a worker asks for
itself before each iteration.
"""

from __future__ import annotations

import threading
import time

from workers.runtime.failures import WorkerFailureError

#: For so long a new word of the agent is waited for: it may lie in the socket of a worker that was busy.
PATIENCE_SECONDS = 1.0


class ServerLease:
    """The newest end that was told, by the clock that runs on while the machine sleeps. Without one there is
    no end."""

    def __init__(self) -> None:
        self._told = threading.Condition()
        self._ends_at: float | None = None

    def update(self, ends_at: float) -> None:
        """Take what the agent says. Raises TypeError, ValueError for what is no number."""
        with self._told:
            self._ends_at = float(ends_at)
            self._told.notify_all()

    def require(self) -> None:
        """Return while the lease runs.

        Raises:
            WorkerFailureError: it is over. Another server may be training this job by now.
        """
        if self._runs():
            return
        with self._told:
            if not self._told.wait_for(self._runs, PATIENCE_SECONDS):
                raise WorkerFailureError("lease_ended", "the lease of this worker's server is over")

    def _runs(self) -> bool:
        return self._ends_at is None or time.clock_gettime(time.CLOCK_BOOTTIME) < self._ends_at
