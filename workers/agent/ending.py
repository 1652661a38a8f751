"""How an agent ends: on request, with or without its workers, or because its credential is revoked."""

from __future__ import annotations

import logging

from workers.agent.assignments import Assignments
from workers.agent.machine import clock
from workers.agent.processes.worker_pool import WorkerPool
from workers.agent.storage.uploads import Uploads
from workers.agent.talking.event_outbox import EventOutbox

logger = logging.getLogger(__name__)

KILL_SECONDS = 5.0
#: Phases of workers that store their state when asked to suspend, and of those that are already ending.
_STORING_WHEN_ASKED = ("loading", "training")
_ENDING = ("suspending", "finishing", "handing_over", "completed", "suspended")


class Ending:
    """Whether the agent is to end, and whether it may yet."""

    def __init__(
        self,
        pool: WorkerPool,
        assignments: Assignments,
        outbox: EventOutbox,
        uploads: Uploads,
        stop_seconds: float,
    ) -> None:
        self._pool = pool
        self._assignments = assignments
        self._outbox = outbox
        self._uploads = uploads
        self._stop_seconds = stop_seconds
        self._deadline = 0.0
        #: What stops: "agent", or "workers" as well; None while the agent is to run.
        self.what: str | None = None
        self.revoked = False

    def begin(self, what: str) -> None:
        """Begin to stop. Workers that stop too first store their state."""
        if self.what is not None:
            return
        logger.info("stopping; the workers %s", "stop too" if what == "workers" else "go on")
        self.what = what
        self._deadline = clock.boot_time_seconds() + self._stop_seconds
        if what != "workers":
            return
        for record in self._pool.records.values():
            assignment = record.assignment
            training = assignment is not None and assignment.purpose == "training"
            if training and record.phase in _STORING_WHEN_ASKED:
                self._assignments.set_goal(record, "suspend", None)
            elif record.phase not in _ENDING:
                self._pool.kill(record, "the agent stops")

    def revoke(self, reason: str) -> None:
        """End all workers, because the credential is revoked."""
        logger.error("the credential is revoked (%s): ending every worker", reason)
        self.revoked = True
        self._pool.kill_all("the agent's credential was revoked")
        self._deadline = clock.boot_time_seconds() + KILL_SECONDS

    def finished(self) -> bool:
        """Whether the agent has nothing left to do. Kills workers that do not end in time."""
        now = clock.boot_time_seconds()
        alive = any(record.alive for record in self._pool.records.values())
        if self.revoked:
            return not alive or now >= self._deadline
        if self.what != "workers":
            return self.what is not None
        busy = alive or len(self._outbox) > 0 or self._uploads.any_pending()
        overdue = now >= self._deadline
        if overdue and alive:
            self._pool.kill_all("the agent stops, and it did not store its state in time")
        return not busy or (overdue and not alive) or now >= self._deadline + KILL_SECONDS
