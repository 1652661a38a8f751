"""GPUs that are neither free nor held by a snapshot's jobs, with the latest time at which they become free.

The time follows from the state of the generation that holds them: a paused job in a hand-over, a
measurement, workers ordered to stop, a silent server, a broken GPU. The bounds are those of
docs/protocols.md 1.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from cluster.choices import ServerState
from cluster.models import Agent, Cluster
from projects.prepared import PreparedValues
from scheduling.choices import GenerationState, Goal, Purpose
from scheduling.core.plans.release import (
    UNKNOWN_SECONDS,
    ReleaseBounds,
    confirmed_by,
    given_up_by,
    handed_over_and_suspended_by,
    measured_by,
    suspended_by,
)
from scheduling.core.question.snapshot import BlockedGpus
from scheduling.services.rows.claims import Claims, GpuOfPool, PoolGeneration


def release_bounds(cluster: Cluster) -> ReleaseBounds:
    """Return the cluster's time-outs in the core's form."""
    return ReleaseBounds(
        report_seconds=cluster.report_seconds,
        silence_seconds=cluster.fence_seconds + cluster.fence_margin_seconds,
        suspend_seconds=cluster.suspend_timeout_seconds,
        handover_seconds=cluster.handover_timeout_seconds,
        measuring_seconds=cluster.profile_maximum_seconds,
    )


@dataclass(frozen=True)
class _Pool:
    """The pool's GPUs by address, and the claims on them."""

    cluster: Cluster
    bounds: ReleaseBounds
    moment: float
    gpus: Sequence[GpuOfPool]
    claims: Claims


_SILENT = PreparedValues(
    lambda cluster_id: Agent.objects.filter(
        server__cluster=cluster_id, server__state=ServerState.SUSPECT
    ).values_list("server_id", "last_report_at", "enrolled_at")
)


def blocked_gpus(
    cluster: Cluster, gpus: Sequence[GpuOfPool], claims: Claims, planned: set[str], moment: float
) -> list[BlockedGpus]:
    """Return every GPU of the pool that cannot be used now, with the time until which that may last.

    ``gpus``: by address. ``planned``: ids of the snapshot's jobs, whose GPUs are known.
    """
    pool = _Pool(cluster, release_bounds(cluster), moment, gpus, claims)
    taken = {
        address
        for key, addresses in claims.placement.items()
        if (holder := claims.generations[key]).job_id in planned and holder.purpose == Purpose.TRAINING
        for address in addresses
    }
    return [
        *_left_out(pool, planned),
        *_being_measured(pool),
        *_overdue(pool),
        *_on_silent_servers(pool, taken),
        *_broken(pool),
    ]


def _left_out(pool: _Pool, planned: set[str]) -> Iterator[BlockedGpus]:
    """Yield training generations of jobs that the snapshot leaves out: paused, or set aside."""
    generations = [
        holder
        for holder in _holding(pool)
        if holder.purpose == Purpose.TRAINING and holder.job_id not in planned
    ]
    handovers = {
        holder.job_id: _seconds(holder.step_expires_at)
        for holder in generations
        if holder.state == GenerationState.HANDOVER
    }
    for holder in generations:
        ends_at = _seconds(holder.step_expires_at)
        if holder.job_id in handovers:
            until = handed_over_and_suspended_by(handovers[holder.job_id], pool.moment, pool.bounds)
        elif holder.goal == Goal.SUSPEND:
            until = suspended_by(ends_at, pool.moment, pool.bounds)
        else:
            # It trains, and has no order to stop.
            until = pool.moment + UNKNOWN_SECONDS
        yield _block(pool, holder, until)


def _holding(pool: _Pool) -> Iterator[PoolGeneration]:
    """Yield generations that hold GPUs of the pool and are not retired."""
    for key, holder in pool.claims.generations.items():
        holds = key in pool.claims.placement or key in pool.claims.clearing
        if holds and holder.state != GenerationState.RETIRED:
            yield holder


def _being_measured(pool: _Pool) -> Iterator[BlockedGpus]:
    for holder in _holding(pool):
        if holder.purpose == Purpose.PROFILING:
            until = measured_by(
                holder.created_at.timestamp(),
                _seconds(holder.held_at),
                pool.moment,
                pool.bounds,
                waits=holder.id in pool.claims.waiting,
            )
            yield _block(pool, holder, until)


def _overdue(pool: _Pool) -> Iterator[BlockedGpus]:
    """Yield GPUs that agents were ordered to clear and did not confirm in the usual time."""
    for key, addresses in pool.claims.clearing.items():
        told_at = _seconds(pool.claims.generations[key].retired_at)
        until = confirmed_by(told_at or 0.0, pool.moment, pool.bounds)
        if until is not None:
            yield BlockedGpus(tuple(sorted(addresses)), until)


def _on_silent_servers(pool: _Pool, taken: set[int]) -> Iterator[BlockedGpus]:
    """Yield GPUs of silent servers that no planned job holds. A planned job keeps its GPUs."""
    for server_id, reported_at, enrolled_at in _SILENT.ask(pool.cluster.pk):
        idle = [
            address
            for address, gpu in enumerate(pool.gpus)
            if gpu.server_id == server_id and address not in taken
        ]
        if idle:
            heard_at = (reported_at or enrolled_at).timestamp()
            until = given_up_by(heard_at, _seconds(pool.cluster.leases_hold_until), pool.moment, pool.bounds)
            yield BlockedGpus(addresses=tuple(sorted(idle)), until=until)


def _broken(pool: _Pool) -> Iterator[BlockedGpus]:
    broken = [address for address, gpu in enumerate(pool.gpus) if not gpu.healthy]
    if broken:
        yield BlockedGpus(addresses=tuple(broken), until=pool.moment + UNKNOWN_SECONDS)


def _block(pool: _Pool, holder: PoolGeneration, until: float) -> BlockedGpus:
    claims = pool.claims
    addresses = {*claims.placement.get(holder.id, ()), *claims.clearing.get(holder.id, ())}
    return BlockedGpus(addresses=tuple(sorted(addresses)), until=until)


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
