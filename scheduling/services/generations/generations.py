"""Makes, hands over and retires generations (docs/protocols.md 1). Callers hold the cluster's row."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils import timezone

from cluster.models import Cluster, Gpu
from projects.prepared import PreparedRows
from scheduling.choices import (
    COMING_STATES,
    AssignmentState,
    GenerationState,
    Goal,
    JobEventKind,
    Purpose,
    RetireReason,
)
from scheduling.core.question.worker_counts import workers_by_gpus
from scheduling.models import Assignment, CurveLevel, Generation, Job, ScalingCurve
from scheduling.selectors.recovery.memory_points import PointsInMemory
from scheduling.services.generations.following_plans import FollowedPlans, told_plan
from scheduling.services.generations.held_gpus import hold_all, tell_agents
from scheduling.services.generations.memory_points import start_from_memory
from scheduling.services.generations.protection import Stores, promised_replicas
from scheduling.services.generations.recovery_points import start_from_checkpoint, start_from_predecessor
from scheduling.services.generations.server_ports import NoFreePort, take_ports
from scheduling.services.gradients.measured_links import with_measured_link
from scheduling.services.rows.borrowed import curves_on
from scheduling.services.rows.bulk import update_rows
from scheduling.services.rows.records import record


def live_generation(job: Job) -> Generation | None:
    """Return the job's live training generation, if any."""
    return job.generations.filter(purpose=Purpose.TRAINING, state=GenerationState.LIVE).first()


def coming_generation(job: Job) -> Generation | None:
    """Return the job's coming training generation, if any."""
    return job.generations.filter(purpose=Purpose.TRAINING, state__in=COMING_STATES).first()


_TRAINING = PreparedRows(
    lambda job_ids: Generation.objects.filter(
        job__pk__any_of=job_ids, purpose=Purpose.TRAINING, state__in=[GenerationState.LIVE, *COMING_STATES]
    ).defer("profile", "start")
)


def training_generations(job_ids: Sequence[str]) -> tuple[dict[str, Generation], dict[str, Generation]]:
    """Return `live_generation` and `coming_generation` of many jobs, by job id."""
    live: dict[str, Generation] = {}
    coming: dict[str, Generation] = {}
    for generation in _TRAINING.ask(job_ids) if job_ids else ():
        found = live if generation.state == GenerationState.LIVE else coming
        found[generation.job_id] = generation
    return live, coming


@dataclass(frozen=True)
class NewGeneration:
    """A generation to make on ``gpus`` (ranks in this order).

    ``flexible``: for each GPU, whether the job can go on without it; empty if it needs all. ``curve``: the
    measured curve, if it is not the job's own.
    """

    job: Job
    gpus: Sequence[Gpu]
    reason: str
    purpose: Purpose = Purpose.TRAINING
    #: For a measurement: the levels and times to measure.
    profile: dict[str, Any] | None = None
    flexible: Sequence[bool] = ()
    curve: ScalingCurve | None = None


def create_generation(
    job: Job,
    gpus: Sequence[Gpu],
    *,
    epoch: int,
    purpose: Purpose = Purpose.TRAINING,
    reason: str,
    profile: dict[str, Any] | None = None,
    curve: ScalingCurve | None = None,
) -> Generation | NoFreePort:
    """Call `create_generations` for one job."""
    wanted = NewGeneration(job, gpus, reason, purpose, profile, curve=curve)
    return create_generations([wanted], epoch=epoch)[0]


def create_generations(wanted: Sequence[NewGeneration], *, epoch: int) -> list[Generation | NoFreePort]:
    """Make one generation for each job, in a few queries. Each starts once its job holds all of its GPUs.

    A generation without a live predecessor has its state's source and begins training at once. A job with a
    server that has no free port is not changed.
    """
    followed = FollowedPlans(
        ((one.job, one.gpus[0].kind) for one in wanted),
        {one.job.pk: one.curve.plan_family for one in wanted if one.curve is not None},
    )
    curves = _curves(wanted, followed)
    workers = _workers(wanted, curves)
    ports = take_ports([_port_places(one, count) for one, count in zip(wanted, workers, strict=True)])
    able = [
        (one, count, taken)
        for one, count, taken in zip(wanted, workers, ports, strict=True)
        if not isinstance(taken, NoFreePort)
    ]
    made = iter(_created(able, curves, followed, epoch))
    return [taken if isinstance(taken, NoFreePort) else next(made) for taken in ports]


def _created(
    able: Sequence[tuple[NewGeneration, int, list[int]]],
    curves: Mapping[str, ScalingCurve],
    followed: FollowedPlans,
    epoch: int,
) -> list[Generation]:
    """Make the generations for which there are ports. Each entry has its number of workers and its ports."""
    if not able:
        return []
    wanted = [one for one, _, _ in able]
    for one in wanted:
        one.job.last_generation += 1
    update_rows([one.job for one in wanted], ["last_generation"])
    living = set(
        Generation.objects.filter(
            job__in=[one.job.pk for one in wanted], purpose=Purpose.TRAINING, state=GenerationState.LIVE
        ).values_list("job_id", flat=True)
    )
    in_memory = PointsInMemory(one.job for one in wanted)
    stores = Stores(one.job.cluster_id for one in wanted)
    made = []
    begun = []
    for one, count, (master_port, *_) in able:
        servers = [gpu.server_id for gpu in one.gpus[:count]]
        measured = one.profile["levels"] if one.profile is not None else ()
        generation = Generation(
            job=one.job,
            number=one.job.last_generation,
            purpose=one.purpose,
            epoch=epoch,
            world_size=count,
            master_server_id=one.gpus[0].server_id,
            master_port=master_port,
            secret=secrets.token_hex(32),
            reason=one.reason[:300],
            profile=one.profile,
            curve=curves.get(one.job.pk),
            runtime_plan=with_measured_link(
                followed.runtime_plan(one.job, servers, measured), servers
            ).to_message(),
            communication=told_plan(followed.plan(one.job, servers)),
        )
        if one.purpose == Purpose.TRAINING:
            generation.protection = stores.grant(
                one.job.pk,
                servers,
                in_memory.state_bytes(one.job),
                promised_replicas(one.job),
                one.job.asked_protection.get("replicas"),
            )
            generation.store_secret = secrets.token_hex(32)
        if one.purpose == Purpose.PROFILING or one.job.pk not in living:
            _set_training(generation, one.job, servers, in_memory)
            begun.append(generation)
        made.append(generation)
    Generation.objects.bulk_create(made, batch_size=500)
    Assignment.objects.bulk_create(
        [
            Assignment(
                generation=generation, job=one.job, gpu=gpu, rank=rank,
                handover_port=handover_ports[rank] if rank < len(handover_ports) else None,
                flexible=bool(one.flexible) and one.flexible[rank],
            )
            for (one, _, (_, *handover_ports)), generation in zip(able, made, strict=True)
            for rank, gpu in enumerate(one.gpus)
        ],
        batch_size=1_000,
    )  # fmt: skip
    hold_all(made, also_told=begun)
    return made


def _curves(wanted: Sequence[NewGeneration], followed: FollowedPlans) -> dict[str, ScalingCurve]:
    """Return the jobs' curves on their new kinds of GPU, if measured under the same plan family. Results of
    another plan must not be stored in them.
    """
    families = {one.job.pk: followed.family(one.job) for one in wanted}
    jobs: dict[str, list[Job]] = defaultdict(list)
    found = {one.job.pk: one.curve for one in wanted if one.curve is not None}
    for one in wanted:
        if one.curve is None:
            jobs[one.gpus[0].kind].append(one.job)
    for kind, some in jobs.items():
        found |= curves_on(some, kind)
    return {job_id: curve for job_id, curve in found.items() if curve.plan_family == families[job_id]}


def _workers(wanted: Sequence[NewGeneration], curves: Mapping[str, ScalingCurve]) -> list[int]:
    """Return the number of workers of each generation: that of its GPUs, or fewer if the function's numbers
    of workers are no powers of two. The other GPUs are held and idle.
    """
    measured: dict[int, list[int]] = defaultdict(list)
    for curve_id, gpus in CurveLevel.objects.filter(
        curve__in={curve.pk for curve in curves.values()}
    ).values_list("curve_id", "gpus"):
        measured[curve_id].append(gpus)
    found = []
    for one in wanted:
        count = len(one.gpus)
        if one.profile is not None:
            count = max(one.profile["levels"], default=count)
        elif one.job.pk in curves:
            levels = measured[curves[one.job.pk].pk]
            count = workers_by_gpus(levels, one.job.global_batch_size).get(count, count)
        found.append(min(count, len(one.gpus)))
    return found


def begin_training(generation: Generation, job: Job) -> None:
    """Tell a generation without a live predecessor to start from the newest state."""
    _set_training(generation, job, _servers_of_ranks(generation), PointsInMemory([job]))
    generation.save(update_fields=["goal", "start", "start_iteration", "state"])
    tell_agents(generation)


def _servers_of_ranks(generation: Generation) -> list[int]:
    members = generation.assignments.filter(rank__lt=generation.world_size).order_by("rank")
    return list(members.values_list("gpu__server_id", flat=True))


def _set_training(
    generation: Generation, job: Job, servers: Sequence[int], in_memory: PointsInMemory
) -> None:
    """Set the generation to train from the newest state. `servers`: the server of each rank."""
    generation.goal = Goal.TRAIN
    generation.start = {"from": "nothing"}
    generation.start_iteration = 0
    if generation.purpose == Purpose.TRAINING and job.checkpoint is not None:
        generation.start = start_from_checkpoint(job.checkpoint, generation.world_size)
        generation.start_iteration = job.checkpoint.iteration
    if generation.purpose == Purpose.TRAINING:
        _prefer_memory(generation, job, servers, in_memory)
    if generation.state == GenerationState.READY:
        generation.state = GenerationState.HANDOVER


def _prefer_memory(
    generation: Generation, job: Job, servers: Sequence[int], in_memory: PointsInMemory
) -> None:
    """Use a point in servers' memory if there is one: it is newer than the durable state."""
    point = in_memory.newest(job, servers)
    if point is None:
        return
    generation.start = start_from_memory(point, servers)
    generation.start_iteration = point.iteration
    record(
        job,
        JobEventKind.RECOVERING,
        f"Loads its state from the servers' memory, where generation {point.generation.number} left "
        f"iteration {point.iteration} or a later one.",
        generation=generation.number,
    )


def begin_handover(generation: Generation, predecessor: Generation, cluster: Cluster) -> None:
    """Tell the live generation to hand over and the ready one to take over, in one step."""
    now = timezone.now()
    expires_at = now + timedelta(seconds=cluster.handover_timeout_seconds)
    predecessor.goal = Goal.HAND_OVER
    predecessor.save(update_fields=["goal"])
    generation.goal = Goal.TRAIN
    generation.state = GenerationState.HANDOVER
    generation.step_expires_at = expires_at
    generation.start = start_from_predecessor(predecessor, _servers_of_ranks(generation))
    generation.save(update_fields=["goal", "state", "start", "step_expires_at"])
    tell_agents(predecessor)
    tell_agents(generation)


def retire(generation: Generation, because: RetireReason, reason: str) -> None:
    """Stop a generation for good. Its GPUs become free once agents confirm that its workers are gone."""
    if generation.state == GenerationState.RETIRED:
        return
    generation.state = GenerationState.RETIRED
    generation.goal = Goal.STOP
    generation.retired_at = timezone.now()
    generation.retired_because, generation.retire_reason = because, reason[:300]
    generation.step_expires_at = None
    generation.save(
        update_fields=["state", "goal", "retired_at", "retired_because", "retire_reason", "step_expires_at"]
    )
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
        retire(generation, RetireReason.LET_GO, reason)


def tell_to_suspend(generation: Generation, seconds: float) -> None:
    """Tell the live generation to store its state and leave its GPUs within ``seconds``."""
    generation.goal = Goal.SUSPEND
    generation.step_expires_at = timezone.now() + timedelta(seconds=seconds)
    generation.save(update_fields=["goal", "step_expires_at"])
    tell_agents(generation)


def _port_places(one: NewGeneration, workers: int) -> list[int]:
    """Return the servers on which a generation needs a port: its first server for the rendezvous, and each
    rank's server for its shard if there is a state to hand over.
    """
    serving = [] if one.purpose == Purpose.PROFILING else [gpu.server_id for gpu in one.gpus[:workers]]
    return [one.gpus[0].server_id, *serving]
