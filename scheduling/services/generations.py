"""Making, holding and retiring generations (docs/protocols.md 1). Callers hold the cluster's row."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from django.db.models import F
from django.utils import timezone

from cluster.models import Agent, Cluster, Gpu, Server
from scheduling.choices import AssignmentState, GenerationState, Goal, JobState, Purpose
from scheduling.models import Assignment, Generation, Job
from scheduling.services.blocking import release_bounds
from scheduling.services.borrowed import curve_on
from scheduling.services.records import record
from scheduling.services.wakeups import wake

#: A successor or a generation that takes over: everything before `live`.
COMING_STATES = (GenerationState.PREPARING, GenerationState.READY, GenerationState.HANDOVER)


def live_generation(job: Job) -> Generation | None:
    """The one that trains, if any."""
    return job.generations.filter(purpose=Purpose.TRAINING, state=GenerationState.LIVE).first()


def coming_generation(job: Job) -> Generation | None:
    """The one that is on its way to train, if any."""
    return job.generations.filter(purpose=Purpose.TRAINING, state__in=COMING_STATES).first()


def create_generation(
    job: Job,
    gpus: Sequence[Gpu],
    *,
    epoch: int,
    purpose: Purpose = Purpose.TRAINING,
    reason: str,
    profile: dict[str, Any] | None = None,
    flexible: Sequence[bool] = (),
) -> Generation:
    """A new generation on ``gpus`` (ranks in this order). It starts once every GPU is its job's.

    The first generation, or one without a living predecessor, knows at once where its state comes
    from and goes straight to training. ``flexible``: which GPUs the job can go on without; empty for none.
    """
    job.last_generation += 1
    job.save(update_fields=["last_generation"])
    master = gpus[0].server
    master_port, handover_port = _take_ports(master)
    generation = Generation.objects.create(
        job=job,
        number=job.last_generation,
        purpose=purpose,
        epoch=epoch,
        world_size=len(gpus),
        master_server=master,
        master_port=master_port,
        handover_port=handover_port,
        secret=secrets.token_hex(32),
        reason=reason[:300],
        profile=profile,
        curve=curve_on(job, gpus[0].kind),
    )
    marks = flexible or [False] * len(gpus)
    Assignment.objects.bulk_create(
        Assignment(generation=generation, job=job, gpu=gpu, rank=rank, flexible=marks[rank])
        for rank, gpu in enumerate(gpus)
    )
    if purpose == Purpose.PROFILING or live_generation(job) is None:
        begin_training(generation, job)
    hold_gpus(generation)
    return generation


def begin_training(generation: Generation, job: Job) -> None:
    """Tell a generation that has no living predecessor to start from the last durable state."""
    generation.goal = Goal.TRAIN
    generation.start = {"from": "nothing"}
    generation.start_iteration = 0
    if generation.purpose == Purpose.TRAINING and job.checkpoint is not None:
        checkpoint = job.checkpoint
        generation.start = {"from": "checkpoint", "uri": checkpoint.uri, "iteration": checkpoint.iteration}
        generation.start_iteration = checkpoint.iteration
    if generation.state == GenerationState.READY:
        generation.state = GenerationState.HANDOVER
    generation.save(update_fields=["goal", "start", "start_iteration", "state"])
    tell_agents(generation)


def begin_handover(generation: Generation, predecessor: Generation, cluster: Cluster) -> None:
    """Tell the living generation to hand over and the ready one to take over (one step, no round trip between)."""
    now = timezone.now()
    expires_at = now + timedelta(seconds=cluster.handover_timeout_seconds)
    predecessor.goal = Goal.HAND_OVER
    predecessor.save(update_fields=["goal"])
    generation.goal = Goal.TRAIN
    generation.state = GenerationState.HANDOVER
    generation.step_expires_at = expires_at
    generation.start = {
        "from": "handover",
        "generation": predecessor.number,
        "address": predecessor.master_server.address,
        "port": predecessor.handover_port,
    }
    generation.save(update_fields=["goal", "state", "start", "step_expires_at"])
    tell_agents(predecessor)
    tell_agents(generation)


def hold_gpus(generation: Generation) -> bool:
    """Take the GPUs that no other job holds. True once all are held; then its workers may start."""
    waiting = list(generation.assignments.filter(state=AssignmentState.WAITING).select_related("gpu__server"))
    if not waiting:
        return True
    taken = set(
        Assignment.objects.filter(
            gpu__in=[assignment.gpu_id for assignment in waiting],
            state__in=[AssignmentState.HELD, AssignmentState.CLEARING],
        )
        .exclude(job_id=generation.job_id)
        .values_list("gpu_id", flat=True)
    )
    now = timezone.now()
    free = [assignment.pk for assignment in waiting if assignment.gpu_id not in taken]
    Assignment.objects.filter(pk__in=free).update(state=AssignmentState.HELD, held_at=now)
    if len(free) < len(waiting):
        return False
    cluster = Cluster.objects.get(pk=generation.job.cluster_id)
    generation.held_at = now
    seconds = cluster.prepare_timeout_seconds
    if generation.purpose == Purpose.PROFILING:
        seconds = release_bounds(cluster).measurement_seconds
    generation.step_expires_at = now + timedelta(seconds=seconds)
    generation.save(update_fields=["held_at", "step_expires_at"])
    tell_agents(generation)
    return True


def retire(generation: Generation, reason: str) -> None:
    """Stop a generation for good. Its GPUs are free once the agents confirm that its workers are gone."""
    if generation.state == GenerationState.RETIRED:
        return
    generation.state = GenerationState.RETIRED
    generation.goal = Goal.STOP
    generation.retired_at = timezone.now()
    generation.retire_reason = reason[:300]
    generation.step_expires_at = None
    generation.save(update_fields=["state", "goal", "retired_at", "retire_reason", "step_expires_at"])
    now = timezone.now()
    generation.assignments.filter(state=AssignmentState.WAITING).update(
        state=AssignmentState.RELEASED, released_at=now
    )
    versions = tell_agents(generation)
    for server_id, version in versions.items():
        generation.assignments.filter(state=AssignmentState.HELD, gpu__server_id=server_id).update(
            state=AssignmentState.CLEARING, clear_version=version
        )


def let_go(job: Job, reason: str) -> None:
    """Retire every generation of the job."""
    for generation in job.generations.exclude(state=GenerationState.RETIRED):
        retire(generation, reason)


def suspend_live(job: Job, reason: str) -> None:
    """Take all GPUs from the job; a living generation writes its state first.

    A hand-over that is under way is let finish. Whoever wants the job suspended asks again then: the next plan does, and for a job
    that its owner paused whatever ends the hand-over (`lifecycle.obey_owner`).
    """
    coming = coming_generation(job)
    live = live_generation(job)
    if coming is not None:
        if coming.state == GenerationState.HANDOVER and live is not None:
            # The old one may have stopped already.
            return
        retire(coming, reason)
        if live is None and job.state == JobState.RUNNING:
            job.state = JobState.SUSPENDED
            job.save(update_fields=["state"])
            record(job, "suspended", f"Suspended: {reason}.")
    if live is not None and live.goal == Goal.TRAIN:
        cluster = Cluster.objects.get(pk=job.cluster_id)
        live.goal = Goal.SUSPEND
        live.step_expires_at = timezone.now() + timedelta(seconds=cluster.suspend_timeout_seconds)
        live.save(update_fields=["goal", "step_expires_at"])
        tell_agents(live)
        record(job, "suspending", f"Gives up its GPUs: {reason}.", generation=live.number)


def release_cleared(agent: Agent, alive: Iterable[tuple[str, int, int]]) -> set[str]:
    """Free this server's GPUs whose workers the agent no longer has.

    ``alive``: (job id, generation, rank) of workers that still exist. Only an agent that has obeyed the
    desired state in which the generation was gone can confirm it: otherwise a worker might still be started.
    Returns the ids of jobs that waited for one of the freed GPUs.
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
    """Mark assignments released. Returns the ids of the jobs that waited for one of their GPUs."""
    if not assignments:
        return set()
    Assignment.objects.filter(pk__in=[assignment.pk for assignment in assignments]).update(
        state=AssignmentState.RELEASED, released_at=timezone.now()
    )
    return set(
        Assignment.objects.filter(
            state=AssignmentState.WAITING, gpu_id__in=[assignment.gpu_id for assignment in assignments]
        ).values_list("job_id", flat=True)
    )


def tell_agents(generation: Generation) -> dict[int, int]:
    """Raise the desired version of every server that the generation touches and wake its agent."""
    server_ids = list(generation.assignments.values_list("gpu__server_id", flat=True).distinct())
    Server.objects.filter(pk__in=server_ids).update(desired_version=F("desired_version") + 1)
    versions = dict(Server.objects.filter(pk__in=server_ids).values_list("pk", "desired_version"))
    for server_id, version in versions.items():
        wake(f"agent:{server_id}", desired_version=version)
    return versions


def _take_ports(server: Server) -> tuple[int, int]:
    """Two ports of the server's range that no unretired generation uses, going round so that none is reused soon."""
    server = Server.objects.select_for_update().get(pk=server.pk)
    used = {
        port
        for pair in Generation.objects.filter(master_server=server)
        .exclude(state=GenerationState.RETIRED)
        .values_list("master_port", "handover_port")
        for port in pair
    }
    span = server.port_last - server.port_first + 1
    first = (
        server.port_next if server.port_first <= server.port_next <= server.port_last else server.port_first
    )
    order = [server.port_first + (first - server.port_first + step) % span for step in range(span)]
    free = [port for port in order if port not in used][:2]
    if len(free) < 2:
        raise RuntimeError(
            f"server {server.name} has no two free ports in {server.port_first}-{server.port_last}"
        )
    server.port_next = free[1] + 1
    server.save(update_fields=["port_next"])
    return free[0], free[1]
