"""How jobs of the live cluster begin on a simulated one: as they are, if their servers exist there."""

from __future__ import annotations

import math

import numpy as np

from scheduling.core.question.snapshot import StoredPlan
from simulation.engine.beginning import UnderWay
from simulation.live.state import LiveJob, LiveState, in_order

Place = tuple[int, int]


def under_way(
    state: LiveState, servers: int, gpus_per_server: int, *, lent_servers: int = 0
) -> list[UnderWay]:
    """Return how the workload's first jobs begin on ``servers`` servers, with ``lent_servers`` more on loan.

    Jobs on own servers that do not exist begin without GPUs, and so do all jobs if servers have another size.
    If only borrowed servers are missing, a job on servers of both kinds continues on its own ones, as after a
    reclaim.
    """
    same_size = gpus_per_server == state.gpus_per_server
    return [
        _begun(
            job,
            _held(job, state, servers, lent_servers) if same_size else [],
            state,
            servers,
            gpus_per_server,
        )
        for job in in_order(state)
        if not (job.newcomer or job.asks_again)
    ]


def _held(job: LiveJob, state: LiveState, servers: int, lent_servers: int) -> list[int]:
    """Return the ranks that keep their GPU."""
    borrowed = [server - state.servers for server, _ in job.placement]
    own = [rank for rank, number in enumerate(borrowed) if number < 0]
    if any(job.placement[rank][0] >= servers for rank in own):
        return []
    there = min(lent_servers, state.servers_on_loan)
    if all(number < there for number in borrowed):
        return list(range(len(borrowed)))
    return own if len(own) in {gpus for gpus, _, _ in job.levels} else []


def _begun(job: LiveJob, held: list[int], state: LiveState, servers: int, gpus_per_server: int) -> UnderWay:
    return UnderWay(
        promised=job.promised,
        at_risk=job.at_risk,
        addresses=tuple(_address(job.placement[rank], state, servers, gpus_per_server) for rank in held),
        flexible=tuple(job.flexible[rank] for rank in held) if job.flexible else (),
        pause_left_seconds=_pause_left(job, len(held)),
        started_at=math.nan if job.started_at is None else job.started_at,
        planned_finish_at=math.nan if job.planned_finish_at is None else job.planned_finish_at,
        plan=_stored_plan(job),
    )


def _address(place: Place, state: LiveState, servers: int, gpus_per_server: int) -> int:
    server, gpu = place
    row = server if server < state.servers else servers + server - state.servers
    return row * gpus_per_server + gpu


def _pause_left(job: LiveJob, gpus: int) -> float:
    """Return the seconds left of a pause; a job that continues on fewer GPUs pauses as for any change."""
    if gpus == 0:
        return 0.0
    if gpus == len(job.placement):
        return job.pause_left_seconds
    change = next(pause for level, _, pause in job.levels if level == gpus)
    return max(job.pause_left_seconds, change)


def _stored_plan(job: LiveJob) -> StoredPlan | None:
    if not job.plan:
        return None
    return StoredPlan(
        start=np.array([start for start, _, _ in job.plan], dtype=np.float64),
        end=np.array([end for _, end, _ in job.plan], dtype=np.float64),
        gpus=np.array([gpus for _, _, gpus in job.plan], dtype=np.int64),
        finish_at=math.inf if job.planned_finish_at is None else job.planned_finish_at,
    )
