"""Outside events of a simulated cluster: servers lost and repaired, agents silent, jobs cancelled."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import inf


class HappeningKind(StrEnum):
    """Kind of an outside event."""

    SERVER_LOST = "server_lost"
    SERVER_FENCED = "server_fenced"
    SERVER_BACK = "server_back"
    SERVER_END_KNOWN = "server_end_known"
    SERVER_LEAVES = "server_leaves"
    AGENT_SILENT = "agent_silent"
    AGENT_HEARD = "agent_heard"
    JOB_CANCELLED = "job_cancelled"
    JOB_STOPS_EARLY = "job_stops_early"


@dataclass(frozen=True, slots=True, order=True)
class Happening:
    """One outside event, at ``at`` seconds of the trace.

    ``target``: row of the job in the workload, or number of the server within its pool, where servers of the
    inference cluster follow the pool's own. An early stop completes a job whose own stop condition is met. A
    lost server's jobs stop at once and may start elsewhere when it is fenced; the run adds that event itself.
    ``until``: the end that becomes known.
    """

    at: float
    kind: HappeningKind
    target: int
    pool: int = 0
    until: float = inf


class HappeningQueue:
    """Coming events in order; the run may add more."""

    def __init__(self, happenings: Iterable[Happening]) -> None:
        self._happenings = sorted(happenings)
        self._next = 0

    @property
    def next_at(self) -> float:
        """When the next event comes; infinity after the last."""
        return self._happenings[self._next].at if self._next < len(self._happenings) else inf

    def pop(self) -> Happening:
        """Remove and return the next event. Raises IndexError after the last."""
        happening = self._happenings[self._next]
        self._next += 1
        return happening

    def add(self, happening: Happening) -> None:
        """Add an event, no earlier than those already popped."""
        insort(self._happenings, happening, lo=self._next)

    def forget(self, kind: HappeningKind, target: int, pool: int) -> bool:
        """Remove the next event of that kind and target. Return whether there was one."""
        for position in range(self._next, len(self._happenings)):
            other = self._happenings[position]
            if (other.kind, other.target, other.pool) == (kind, target, pool):
                del self._happenings[position]
                return True
        return False
