"""Servers that leave at a known time are planned like on-loan servers with a known return.

No promise rests on capacity that ends. So an owned server with a known end is planned like an
on-loan server with the cluster's own kind of GPU: jobs without a promise are placed there, and promised jobs
grow onto it if their plans bear its return (decision 0015). No job is placed on it for a slot that would end
after it leaves, so it is empty in time (decision 0015).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from scheduling.core.question.snapshot import JobSnapshot, ServerSnapshot, Snapshot

Holding = tuple[Sequence[int], Sequence[bool]]
"""GPU addresses of one job, and which of them flexible workers hold (empty: none)."""

_SAME_INSTANT_SECONDS = 1e-6


def with_known_ends(snapshot: Snapshot) -> Snapshot:
    """Convert every known end into what the planner acts on now; no server of the result has an end."""
    if all(server.ends_at == inf for server in snapshot.servers):
        return snapshot
    holdings = [(job.placement, job.flexible) for job in snapshot.jobs if job.promised and job.placement]
    servers = servers_at_present(
        snapshot.servers,
        holdings,
        next_slot_at=snapshot.next_slot_at,
        slot_seconds=snapshot.settings.slot_seconds,
    )
    if not any(server.same_kind for server in servers):
        return replace(snapshot, servers=servers)
    return replace(snapshot, servers=servers, jobs=tuple(_as_fast_there(job) for job in snapshot.jobs))


def servers_at_present(
    servers: Sequence[ServerSnapshot],
    holdings: Iterable[Holding],
    *,
    next_slot_at: float,
    slot_seconds: float,
) -> tuple[ServerSnapshot, ...]:
    """The servers as the planner treats them now; none of the result has an end.

    A server is not usable if it ends within the next slot, if a promise rested on it when its end became
    known (until its promised jobs have moved to lasting servers), or if servers with another kind of GPU are
    on loan, because only one kind is borrowed at a time. ``holdings``: of the promised jobs.
    """
    last_start = next_slot_at + slot_seconds - _SAME_INSTANT_SECONDS
    another_kind = any(server.on_loan and not server.same_kind for server in servers)
    standing = _servers_that_promises_stand_on(servers, holdings)
    return tuple(
        _at_present(server, last_start, another_kind or number in standing)
        for number, server in enumerate(servers)
    )


def first_end(snapshot: Snapshot) -> float:
    """When to decide again so that every server is empty at its end; infinity where no server has an end."""
    return wake_for_ends(
        [server.ends_at for server in snapshot.servers], snapshot.next_slot_at, snapshot.settings.slot_seconds
    )


def wake_for_ends(ends_at: Iterable[float], next_slot_at: float, slot_seconds: float) -> float:
    """`first_end` of servers that end at ``ends_at``."""
    wakes = [
        max(end - slot_seconds, next_slot_at + slot_seconds) for end in ends_at if next_slot_at < end < inf
    ]
    return min(wakes, default=inf)


def _at_present(server: ServerSnapshot, last_start: float, kept_free: bool) -> ServerSnapshot:
    """The server as the planner treats it now."""
    if server.ends_at == inf:
        return server
    over = server.ends_at < last_start
    if server.on_loan:
        return replace(server, ends_at=inf, usable=server.usable and not over)
    if over or kept_free:
        return replace(server, ends_at=inf, usable=False)
    return replace(server, ends_at=inf, on_loan=True, same_kind=True)


def _servers_that_promises_stand_on(
    servers: Sequence[ServerSnapshot], holdings: Iterable[Holding]
) -> set[int]:
    """Owned servers with an end on which a promised job has more than flexible workers beside lasting
    servers."""
    lasting: list[bool] = []
    number_of: list[int] = []
    for number, server in enumerate(servers):
        number_of += [number] * server.gpus
        lasting += [not server.on_loan and server.ends_at == inf] * server.gpus
    standing: set[int] = set()
    for placement, flexible in holdings:
        marks = flexible or (False,) * len(placement)
        based = any(lasting[address] for address in placement)
        standing |= {
            number_of[address] for address, mark in zip(placement, marks, strict=True) if not (mark and based)
        }
    return standing


def _as_fast_there(job: JobSnapshot) -> JobSnapshot:
    """The job with its own curve on servers with an end, whose GPUs are of the same kind."""
    if job.lent_curve is not None or job.curve.levels.size == 0:
        return job
    return replace(job, lent_curve=job.curve)
