"""GPUs that are neither free nor held by a snapshot's jobs, with the latest time at which they become free.

The time follows from the state of the generation that holds them: a paused job in a hand-over, a
measurement, workers ordered to stop, a silent server, a broken GPU. The bounds are those of
docs/protocols.md 1.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from cluster.choices import ServerState
from cluster.models import Agent, Cluster, Gpu
from projects.prepared import PreparedValues
from scheduling.choices import AssignmentState, GenerationState, Goal, Purpose
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
from scheduling.models import Assignment


def release_bounds(cluster: Cluster) -> ReleaseBounds:
    """Return the cluster's time-outs in the core's form."""
    return ReleaseBounds(
        report_seconds=cluster.report_seconds,
        silence_seconds=cluster.fence_seconds + cluster.fence_margin_seconds,
        suspend_seconds=cluster.suspend_timeout_seconds,
        handover_seconds=cluster.handover_timeout_seconds,
        measuring_seconds=cluster.profile_maximum_seconds,
    )


class _Held(NamedTuple):
    """An unreleased assignment and what is read of its generation. A large cluster has thousands."""

    gpu_id: int
    job_id: str
    state: str
    generation_id: int
    purpose: str
    generation_state: str
    goal: str
    created_at: datetime
    held_at: datetime | None
    step_expires_at: datetime | None
    retired_at: datetime | None


@dataclass(frozen=True)
class _Pool:
    """The pool's GPUs, their addresses, and unreleased assignments by generation."""

    cluster: Cluster
    bounds: ReleaseBounds
    moment: float
    gpus: Sequence[Gpu]
    addresses: Mapping[int, int]
    held: Mapping[int, list[_Held]]


_UNRELEASED = PreparedValues(
    lambda cluster_id: (
        Assignment.objects.filter(job__cluster=cluster_id)
        .exclude(state=AssignmentState.RELEASED)
        .values_list(
            "gpu_id", "job_id", "state", "generation_id", "generation__purpose", "generation__state",
            "generation__goal", "generation__created_at", "generation__held_at",
            "generation__step_expires_at", "generation__retired_at",
        )
    )
)  # fmt: skip
_SILENT = PreparedValues(
    lambda cluster_id: Agent.objects.filter(
        server__cluster=cluster_id, server__state=ServerState.SUSPECT
    ).values_list("server_id", "last_report_at", "enrolled_at")
)


def blocked_gpus(
    cluster: Cluster, gpus: Sequence[Gpu], addresses: Mapping[int, int], planned: set[str], moment: float
) -> list[BlockedGpus]:
    """Return every GPU of the pool that cannot be used now, with the time until which that may last.

    ``addresses``: address by a GPU's primary key. ``planned``: ids of the snapshot's jobs, whose GPUs are
    known.
    """
    held: dict[int, list[_Held]] = defaultdict(list)
    for row in _UNRELEASED.ask(cluster.pk):
        assignment = _Held(*row)
        if assignment.gpu_id in addresses:
            held[assignment.generation_id].append(assignment)
    pool = _Pool(cluster, release_bounds(cluster), moment, gpus, addresses, held)
    taken = {
        addresses[assignment.gpu_id]
        for assignments in held.values()
        for assignment in assignments
        if assignment.job_id in planned and assignment.purpose == Purpose.TRAINING
        and assignment.state != AssignmentState.CLEARING
    }  # fmt: skip
    return [
        *_left_out(pool, planned),
        *_being_measured(pool),
        *_overdue(pool),
        *_on_silent_servers(pool, taken),
        *_broken(pool),
    ]


def _left_out(pool: _Pool, planned: set[str]) -> Iterator[BlockedGpus]:
    """Yield training generations of jobs that the snapshot leaves out: paused, or set aside."""
    generations = {
        key: assignments[0]
        for key, assignments in pool.held.items()
        if assignments[0].purpose == Purpose.TRAINING
        and assignments[0].generation_state != GenerationState.RETIRED
        and assignments[0].job_id not in planned
    }
    handovers = {
        generation.job_id: _seconds(generation.step_expires_at)
        for generation in generations.values()
        if generation.generation_state == GenerationState.HANDOVER
    }
    for key, generation in generations.items():
        ends_at = _seconds(generation.step_expires_at)
        if generation.job_id in handovers:
            until = handed_over_and_suspended_by(handovers[generation.job_id], pool.moment, pool.bounds)
        elif generation.goal == Goal.SUSPEND:
            until = suspended_by(ends_at, pool.moment, pool.bounds)
        else:
            # It trains, and has no order to stop.
            until = pool.moment + UNKNOWN_SECONDS
        yield _block(pool, pool.held[key], until)


def _being_measured(pool: _Pool) -> Iterator[BlockedGpus]:
    for assignments in pool.held.values():
        generation = assignments[0]
        if generation.purpose == Purpose.PROFILING and generation.generation_state != GenerationState.RETIRED:
            waits = any(assignment.state == AssignmentState.WAITING for assignment in assignments)
            until = measured_by(
                generation.created_at.timestamp(),
                _seconds(generation.held_at),
                pool.moment,
                pool.bounds,
                waits=waits,
            )
            yield _block(pool, assignments, until)


def _overdue(pool: _Pool) -> Iterator[BlockedGpus]:
    """Yield GPUs that agents were ordered to clear and did not confirm in the usual time."""
    for assignments in pool.held.values():
        clearing = [each for each in assignments if each.state == AssignmentState.CLEARING]
        told_at = _seconds(assignments[0].retired_at)
        until = confirmed_by(told_at or 0.0, pool.moment, pool.bounds) if clearing else None
        if until is not None:
            yield _block(pool, clearing, until)


def _on_silent_servers(pool: _Pool, taken: set[int]) -> Iterator[BlockedGpus]:
    """Yield GPUs of silent servers that no planned job holds. A planned job keeps its GPUs."""
    for server_id, reported_at, enrolled_at in _SILENT.ask(pool.cluster.pk):
        idle = [
            pool.addresses[gpu.pk]
            for gpu in pool.gpus
            if gpu.server_id == server_id and pool.addresses[gpu.pk] not in taken
        ]
        if idle:
            heard_at = (reported_at or enrolled_at).timestamp()
            until = given_up_by(heard_at, _seconds(pool.cluster.leases_hold_until), pool.moment, pool.bounds)
            yield BlockedGpus(addresses=tuple(sorted(idle)), until=until)


def _broken(pool: _Pool) -> Iterator[BlockedGpus]:
    broken = sorted(pool.addresses[gpu.pk] for gpu in pool.gpus if not gpu.healthy)
    if broken:
        yield BlockedGpus(addresses=tuple(broken), until=pool.moment + UNKNOWN_SECONDS)


def _block(pool: _Pool, assignments: Sequence[_Held], until: float) -> BlockedGpus:
    addresses = sorted({pool.addresses[assignment.gpu_id] for assignment in assignments})
    return BlockedGpus(addresses=tuple(addresses), until=until)


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
