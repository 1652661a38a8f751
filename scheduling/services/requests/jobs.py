"""Submits and controls jobs for people. The planner gives the verdicts (planning.py)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Exists, QuerySet
from django.utils import timezone
from redis.exceptions import RedisError

from cluster.models import Cluster
from projects.errors import Conflict, InvalidRequest, Unavailable
from projects.models import Project, User
from projects.prepared import PreparedInsert, PreparedRows
from projects.redis_connection import redis_client
from scheduling.choices import JobEventKind, JobState, Lossy, ServiceClass, VoidReason
from scheduling.core.question.worker_counts import MOST_WORKERS, measurable_levels
from scheduling.core.runtime_plans.expert_families import with_experts
from scheduling.core.runtime_plans.plan import PlanFamily
from scheduling.curve_keys import data_digest, function_key_on, key_of_family
from scheduling.life_cycle.steps import PAUSED
from scheduling.models import FunctionVersion, GradientProfile, Job, JobEvent, ScalingCurve
from scheduling.services.generations.generations import let_go
from scheduling.services.generations.lifecycle import suspend
from scheduling.services.gradients.families import family_of_newcomer
from scheduling.services.rows.records import lock_cluster, move, planning_fact_changed, record
from scheduling.services.rows.scoring import void_promise
from scheduling.services.rows.wakeups import wake
from scheduling.services.snapshots.kinds import first_kind, newcomers_kind
from scheduling.services.verdicts.quotas import check_active_jobs


@dataclass(frozen=True)
class JobRequest:
    """A submission: everything except a number of GPUs."""

    function_version: FunctionVersion
    name: str
    #: Values passed to the function.
    hyperparameters: Mapping[str, Any]
    #: Iteration after which the job ends.
    max_iterations: int
    service_class: str
    deadline_at: datetime | None = None
    #: Metric value at which it ends earlier; None without one.
    target: Mapping[str, Any] | None = None
    #: The user's labels by name.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Declared data sets.
    data: Sequence[Mapping[str, Any]] = ()
    checkpoint_seconds: float = 60.0
    seed: int = 0
    lossy: str = Lossy.REFUSED
    #: Names of the allowed codecs; empty: any.
    codecs: Sequence[str] = ()
    #: `replicas`: copies of the state in memory; `frequency`: most iterations between two points.
    protection: Mapping[str, int] = field(default_factory=dict)

    @property
    def global_batch_size(self) -> int:
        return int(self.hyperparameters["global_batch_size"])


def default_cluster() -> Cluster:
    """Return the cluster that jobs are submitted to.

    Raises:
        Unavailable: no cluster has been set up yet.
    """
    cluster = Cluster.objects.order_by("id").first()
    if cluster is None:
        raise Unavailable("No cluster is set up yet; an operator has to enrol a server first.")
    return cluster


def _curve_under(key: Any, function: Any) -> QuerySet[ScalingCurve]:
    """Return the curve with a key, annotated with whether the gradients of ``function`` (a key) were
    measured."""
    measured = GradientProfile.objects.filter(key=function)
    return ScalingCurve.objects.filter(key=key).annotate(gradients_known=Exists(measured)).order_by()


_CURVE = PreparedRows(_curve_under)
_NEW_JOB = PreparedInsert(Job)
_NEW_EVENT = PreparedInsert(JobEvent)


def curve_for(request: JobRequest, gpu_kind: str) -> ScalingCurve:
    """Return the curve with the request's key, measured or not; create it if needed.

    Raises:
        InvalidRequest: none of the function's numbers of workers divides the batch.
    """
    version = request.function_version
    _check_batch(request.global_batch_size, version.worker_counts)
    digest = data_digest(request.data)
    function = function_key_on(request, gpu_kind)
    dense = PlanFamily.DENSE.value
    unplanned = dense if version.experts is None else with_experts(dense)
    family = unplanned
    key = key_of_family(function, family)
    curve = _CURVE.first(key, function)
    if curve is None or curve.gradients_known:  # type: ignore[attr-defined]
        is_lossy = request.lossy == Lossy.ALLOWED
        family = family_of_newcomer(function, unplanned, lossy=is_lossy, codecs=request.codecs)
        if family != unplanned:
            key = key_of_family(function, family)
            curve = _CURVE.first(key, function)
    return (
        curve
        or ScalingCurve.objects.get_or_create(
            key=key,
            defaults={
                "function_digest": version.bundle_id,
                "data_digest": digest,
                "gpu_kind": gpu_kind,
                "plan_family": family,
                "hyperparameters": dict(request.hyperparameters),
            },
        )[0]
    )


def _check_batch(global_batch_size: int, worker_counts: Sequence[int]) -> None:
    if worker_counts and not measurable_levels(global_batch_size, 2 * MOST_WORKERS, worker_counts):
        counts = ", ".join(map(str, worker_counts))
        problem = (
            f"The function runs on {counts} workers, and {global_batch_size} is divided by none of these; "
            "give a multiple of one of them."
        )
        raise InvalidRequest(
            "The global batch cannot be divided among the function's numbers of workers.",
            errors={"hyperparameters.global_batch_size": [problem]},
        )


@transaction.atomic
def job_submit(
    *, project: Project, owner: User, request: JobRequest, resubmission_of: Job | None = None
) -> Job:
    """Store the job and wake the planner, in one transaction. The verdict comes later.

    Raises:
        QuotaExceeded: the project, or its creator's projects in sum, have as many unfinished jobs as
            permitted.
        Conflict: the project is archived.
        Unavailable: no GPU is connected.
        InvalidRequest: the function's numbers of workers do not divide the batch.
    """
    cluster_id, kind = newcomers_kind(request.service_class) or _none_yet(request.service_class)
    curve = curve_for(request, kind)
    # As late as possible: from here on other submissions to the project wait.
    check_active_jobs(project)
    job = Job(
        project=project,
        owner=owner,
        cluster_id=cluster_id,
        function_version=request.function_version,
        curve=curve,
        name=request.name,
        labels=dict(request.labels),
        hyperparameters=dict(request.hyperparameters),
        global_batch_size=request.global_batch_size,
        max_iterations=request.max_iterations,
        target=dict(request.target) if request.target else None,
        seed=request.seed,
        lossy=request.lossy,
        codecs=list(request.codecs),
        asked_protection=dict(request.protection),
        data=[dict(item) for item in request.data],
        checkpoint_seconds=request.checkpoint_seconds,
        service_class=request.service_class,
        deadline_at=request.deadline_at,
        resubmission_of=resubmission_of,
    )
    _NEW_JOB.store(job)
    # No client follows the job yet, so none is notified.
    message = f"Submitted by {owner.username}."
    _NEW_EVENT.store(JobEvent(job=job, kind=JobEventKind.SUBMITTED, message=message, actor=owner.username))
    # No planning fact changes: plans of the other jobs hold without the newcomer.
    wake("plan", trigger=f"submitted {job.pk}")
    return job


def _none_yet(service_class: str) -> tuple[int, str]:
    """Return the default cluster and the first kind of GPU there, if one has just been connected.

    Raises:
        Unavailable: no cluster has been set up yet, or no GPU is connected.
    """
    cluster = default_cluster()
    return cluster.pk, first_kind(cluster, service_class)


def wait_for_verdict(job_id: str, seconds: float) -> Job:
    """Return the job once it is decided, or as it is after ``seconds``. A lost wake-up costs at most 0.25
    s."""
    ends_at = time.monotonic() + seconds
    listener = redis_client().pubsub(ignore_subscribe_messages=True)
    listening = True
    try:
        try:
            listener.subscribe(f"punctual:job:{job_id}")
        except RedisError:
            listening = False
        while True:
            job = Job.objects.get(pk=job_id)
            left = ends_at - time.monotonic()
            if job.decided_at is not None or left <= 0:
                return job
            if listening:
                try:
                    listener.get_message(timeout=min(left, 0.25))
                    continue
                except RedisError:
                    listening = False
            time.sleep(min(left, 0.1))
    finally:
        listener.close()


@transaction.atomic
def job_cancel(*, job: Job, actor: User) -> Job:
    """End the job now. Its GPUs become free once its workers are gone.

    Raises:
        Conflict: it is finished already.
    """
    cluster = lock_cluster(job.cluster_id)
    job = _unfinished(job)
    let_go(job, reason=f"cancelled by {actor.username}")
    void_promise(job, VoidReason.CANCELLED)
    if job.decided_at is None:
        job.decided_at = timezone.now()
    job.save()
    move(job, JobState.CANCELLED, f"Cancelled by {actor.username}.", actor=actor.username)
    planning_fact_changed(cluster)
    wake("plan", trigger=f"cancelled {job.pk}")
    return job


@transaction.atomic
def job_pause(*, job: Job, actor: User) -> Job:
    """Release the job's GPUs until its owner resumes it. Its promise becomes void.

    A hand-over under way is completed first.

    Raises:
        Conflict: the job is finished, undecided or paused already.
    """
    cluster = lock_cluster(job.cluster_id)
    job = _unfinished(job)
    if job.paused_by_owner:
        raise Conflict(f"Job {job.pk} is paused already.")
    if job.state in (JobState.SUBMITTED, JobState.PROFILING):
        raise Conflict(f"Job {job.pk} has no verdict yet; cancel it, or pause it once it is admitted.")
    void_promise(job, VoidReason.PAUSED)
    job.paused_by_owner = True
    job.promise_asked_again = False
    job.promised = False
    job.plan = None
    job.save()
    record(job, JobEventKind.PAUSED, f"Paused by {actor.username}; the state is kept.", actor=actor.username)
    suspend(job, PAUSED)
    planning_fact_changed(cluster)
    wake("plan", trigger=f"paused {job.pk}")
    return job


@transaction.atomic
def job_resume(*, job: Job, actor: User) -> Job:
    """Let a paused job be planned again. A promise that the pause made void is decided again, and restored if
    it can be kept.

    The planner does that once the job has left its GPUs.

    Raises:
        Conflict: the job is not paused.
    """
    cluster = lock_cluster(job.cluster_id)
    job = _unfinished(job)
    if not job.paused_by_owner:
        raise Conflict(f"Job {job.pk} is not paused.")
    job.paused_by_owner = False
    job.promise_asked_again = job.void_reason == VoidReason.PAUSED
    job.save(update_fields=["paused_by_owner", "promise_asked_again"])
    then = "; its promise is decided again" if job.promise_asked_again else ""
    record(job, JobEventKind.RESUMED, f"Resumed by {actor.username}{then}.", actor=actor.username)
    planning_fact_changed(cluster)
    wake("plan", trigger=f"resumed {job.pk}")
    return job


def _unfinished(job: Job) -> Job:
    fresh = (
        Job.objects.select_for_update(of=("self",))
        .select_related("project", "function_version")
        .get(pk=job.pk)
    )
    if fresh.finished():
        raise Conflict(f"Job {fresh.pk} is {fresh.state} already.")
    return fresh


def request_of(job: Job) -> JobRequest:
    """Return the job's request, for cloning it or asking again."""
    return JobRequest(
        function_version=job.function_version,
        name=job.name,
        hyperparameters=json.loads(json.dumps(job.hyperparameters)),
        max_iterations=job.max_iterations,
        service_class=job.service_class or ServiceClass.SLO,
        deadline_at=job.deadline_at,
        target=job.target,
        labels=dict(job.labels),
        data=list(job.data),
        checkpoint_seconds=job.checkpoint_seconds,
        seed=job.seed,
        lossy=job.lossy,
        codecs=tuple(job.codecs),
        protection=dict(job.asked_protection),
    )
