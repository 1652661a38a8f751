"""What happens to a simulated cluster from outside: servers lost and repaired, agents silent, jobs cancelled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What happens."""

    SERVER_LOST = "server_lost"
    SERVER_FENCED = "server_fenced"
    SERVER_BACK = "server_back"
    AGENT_SILENT = "agent_silent"
    AGENT_HEARD = "agent_heard"
    JOB_CANCELLED = "job_cancelled"
    JOB_STOPS_EARLY = "job_stops_early"


@dataclass(frozen=True, slots=True, order=True)
class Happening:
    """One event from outside, at ``at`` seconds of the trace.

    ``target``: number of the server within its pool, where those of the inference cluster follow the pool's own, or row of the job in the workload. An early stop ends a job whose own
    condition was reached: it completes then. A lost server's jobs stop at once and may start elsewhere when it is fenced;
    the run adds that event by itself.
    """

    at: float
    kind: Kind
    target: int
    pool: int = 0
