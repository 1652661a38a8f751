"""Holds, clears and releases GPUs of generations, and notifies agents. Callers hold the cluster's row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from django.db import connection
from django.utils import timezone

from cluster.models import Agent, Cluster
from scheduling.choices import AssignmentState, Purpose
from scheduling.models import Assignment, Generation
from scheduling.services.generations.blocking import release_bounds
from scheduling.services.rows.bulk import update_rows
from scheduling.services.rows.records import read_cluster
from scheduling.services.rows.wakeups import wake_agents


def hold_gpus(generation: Generation) -> bool:
    """Take the GPUs that no other job holds. Return whether all are held; then the workers may start."""
    return bool(hold_all([generation]))


def hold_all(generations: Sequence[Generation], also_told: Iterable[Generation] = ()) -> list[Generation]:
    """Call `hold_gpus` for many generations, in order. Return those that hold all of their GPUs.
    ``also_told``: further generations whose agents are notified.
    """
    waiting: dict[int, list[Assignment]] = {generation.pk: [] for generation in generations}
    for assignment in Assignment.objects.filter(generation__in=waiting, state=AssignmentState.WAITING):
        waiting[assignment.generation_id].append(assignment)
    wanted = [assignment.gpu_id for some in waiting.values() for assignment in some]
    if not wanted:
        tell_agents(*also_told)
        return list(generations)
    owners = dict(
        Assignment.objects.filter(
            gpu__in=wanted, state__in=[AssignmentState.HELD, AssignmentState.CLEARING]
        ).values_list("gpu_id", "job_id")
    )
    now = timezone.now()
    held: list[int] = []
    complete, starting = [], []
    for generation in generations:
        mine = waiting[generation.pk]
        free = [each for each in mine if owners.get(each.gpu_id, each.job_id) == each.job_id]
        owners |= {each.gpu_id: each.job_id for each in free}
        held += [each.pk for each in free]
        if len(free) == len(mine):
            complete.append(generation)
            starting += [generation] if mine else []
    Assignment.objects.filter(pk__in=held).update(state=AssignmentState.HELD, held_at=now)
    clusters: dict[int, Cluster] = {}
    for generation in starting:
        cluster_id = generation.job.cluster_id
        if cluster_id not in clusters:
            clusters[cluster_id] = read_cluster(cluster_id)
        seconds = clusters[cluster_id].prepare_timeout_seconds
        if generation.purpose == Purpose.PROFILING:
            seconds = release_bounds(clusters[cluster_id]).measurement_seconds
        generation.held_at = now
        generation.step_expires_at = now + timedelta(seconds=seconds)
    update_rows(starting, ["held_at", "step_expires_at"])
    tell_agents(*{one.pk: one for one in (*starting, *also_told)}.values())
    return complete


def release_cleared(agent: Agent, alive: Iterable[tuple[str, int, int]]) -> set[str]:
    """Free this server's GPUs whose workers the agent no longer has. Return the ids of jobs to advance, as
    `free_assignments`.

    ``alive``: (job id, generation, rank) of workers that still exist. Only an agent that has applied the
    desired state without the generation can confirm its end: otherwise a worker might still be started.
    """
    alive = set(alive)
    clearing = Assignment.objects.filter(
        gpu__server_id=agent.server_id,
        state=AssignmentState.CLEARING,
        clear_version__lte=agent.desired_version_seen,
    ).select_related("generation")
    return free_assignments(
        [
            assignment
            for assignment in clearing
            if (assignment.job_id, assignment.generation.number, assignment.rank) not in alive
        ]
    )


def free_assignments(assignments: Sequence[Assignment]) -> set[str]:
    """Release assignments. Return the ids of jobs to advance: those whose workers ended, and those that
    waited for one of the GPUs.
    """
    if not assignments:
        return set()
    Assignment.objects.filter(pk__in=[assignment.pk for assignment in assignments]).update(
        state=AssignmentState.RELEASED, released_at=timezone.now()
    )
    return {assignment.job_id for assignment in assignments} | set(
        Assignment.objects.filter(
            state=AssignmentState.WAITING, gpu_id__in=[assignment.gpu_id for assignment in assignments]
        ).values_list("job_id", flat=True)
    )


def tell_agents(*generations: Generation) -> dict[int, int]:
    """Increment the desired version of every server of the generations and wake its agent."""
    if not generations:
        return {}
    # Servers that keep copies of the state are notified, too.
    holders = {server for one in generations for held in one.protection.get("holders", ()) for server in held}
    with connection.cursor() as cursor:
        cursor.execute(_RAISE_VERSIONS, [[generation.pk for generation in generations], list(holders)])
        versions = dict(cursor.fetchall())
    wake_agents(versions)
    return versions


_RAISE_VERSIONS = """
update cluster_server set desired_version = desired_version + 1
where id in (
    select gpu.server_id from cluster_gpu gpu join scheduling_assignment given on given.gpu_id = gpu.id
    where given.generation_id = any(%s)
) or id = any(%s::bigint[])
returning id, desired_version
"""
