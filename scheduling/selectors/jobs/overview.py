"""The overview: figures of today, the queue, promises and their slack."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Q
from django.db.models.functions import Coalesce

from cluster.models import Gpu
from projects.models import User
from scheduling.choices import (
    PLANNED_STATES,
    UNDECIDED_STATES,
    AssignmentState,
    JobState,
    PromiseOutcome,
    Purpose,
)
from scheduling.models import Assignment, Job
from scheduling.selectors.jobs import promises
from scheduling.selectors.jobs.job_times import planned_start_at, slack_seconds
from scheduling.selectors.scope.visibility import visible_jobs

WAITING_STATES = (JobState.SUBMITTED, JobState.PROFILING, JobState.ADMITTED, JobState.SUSPENDED)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Figures at the top. GPUs are those of the whole cluster, jobs those that the person may see."""

    total_gpus: int
    #: GPUs of usable servers.
    usable_gpus: int
    #: GPUs that jobs hold.
    busy_gpus: int
    emulated_gpus: int
    running_jobs: int
    waiting_jobs: int
    #: Promised jobs that have not ended.
    open_promises: int
    #: Promised jobs whose promise no plan keeps.
    at_risk: int
    #: Unfinished jobs after their deadline.
    late: int


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A waiting job. ``waiting_seconds``: since its submission, or since it released its GPUs."""

    job: Job
    waiting_seconds: float
    planned_start_at: datetime | None
    #: The planner has not answered yet.
    undecided: bool


@dataclass(frozen=True, slots=True)
class Queue:
    """Waiting jobs, longest wait first; jobs beyond the limit and of other projects are only counted."""

    jobs: list[QueuedJob]
    more: int
    elsewhere: int


@dataclass(frozen=True, slots=True)
class PromiseCounts:
    """Outcomes of deadlines since a time, and the present state of open promises. ``missed`` includes jobs
    that still run."""

    #: Promises kept.
    met: int
    missed: int
    #: Promises that no longer bind.
    void: int
    #: Declined jobs.
    declined: int
    #: Promises of unfinished jobs that are not at risk.
    open: int
    #: Open promises that no plan keeps.
    at_risk: int

    def total(self) -> int:
        return self.met + self.missed + self.void + self.declined + self.open + self.at_risk


@dataclass(frozen=True, slots=True)
class JobSlack:
    """Seconds between a job's planned finish and its deadline; negative if it will be late."""

    job_id: str
    job_name: str
    slack_seconds: float
    promised: bool


def tiles(user: User) -> Tiles:
    """Return the counts, in four queries for any number of jobs."""
    gpus = Gpu.objects.for_training().aggregate(
        total=Count("id"),
        usable=Count("id", filter=Q(pk__in=Gpu.objects.usable())),
        emulated=Count("id", filter=Q(emulated=True)),
    )
    busy = (
        Assignment.objects.filter(state__in=(AssignmentState.HELD, AssignmentState.CLEARING))
        .values("gpu_id")
        .distinct()
        .count()
    )
    jobs = visible_jobs(user).aggregate(
        running=Count("id", filter=Q(state=JobState.RUNNING)),
        waiting=Count("id", filter=Q(state__in=WAITING_STATES)),
        open=Count("id", filter=promises.OPEN),
        at_risk=Count("id", filter=promises.AT_RISK),
        late=Count("id", filter=promises.LATE),
    )
    return Tiles(
        total_gpus=gpus["total"],
        usable_gpus=gpus["usable"],
        busy_gpus=busy,
        emulated_gpus=gpus["emulated"],
        running_jobs=jobs["running"],
        waiting_jobs=jobs["waiting"],
        open_promises=jobs["open"],
        at_risk=jobs["at_risk"],
        late=jobs["late"],
    )


def queue(user: User, now: datetime, limit: int = 15) -> Queue:
    """Return jobs that wait for GPUs. A suspended job waits since its last generation ended."""
    waiting = visible_jobs(user).filter(state__in=WAITING_STATES, paused_by_owner=False)
    everywhere = Job.objects.filter(state__in=WAITING_STATES, paused_by_owner=False).count()
    mine = waiting.count()
    gave_back_at = Max("generations__retired_at", filter=Q(generations__purpose=Purpose.TRAINING))
    rows = (
        waiting.select_related("project")
        .annotate(waiting_since=Coalesce(gave_back_at, "submitted_at"))
        .order_by("waiting_since", "id")[:limit]
    )
    queued = [
        QueuedJob(
            job=job,
            waiting_seconds=(now - job.waiting_since).total_seconds(),
            planned_start_at=planned_start_at(job, now),
            undecided=job.state in UNDECIDED_STATES,
        )
        for job in rows
    ]
    return Queue(jobs=queued, more=max(0, mine - limit), elsewhere=everywhere - mine)


def promise_counts(user: User, since: datetime) -> PromiseCounts:
    """Return outcomes of jobs that ended after ``since`` or have not ended; open promises of any age."""
    ended = promises.UNFINISHED | Q(finished_at__gte=since)
    counts = visible_jobs(user).aggregate(
        met=Count("id", filter=ended & Q(promise_outcome=PromiseOutcome.MET)),
        missed=Count("id", filter=ended & Q(promise_outcome=PromiseOutcome.MISSED)),
        void=Count("id", filter=ended & Q(promise_outcome=PromiseOutcome.VOID)),
        declined=Count("id", filter=ended & Q(state=JobState.DECLINED)),
        open=Count("id", filter=promises.OPEN & Q(at_risk=False)),
        at_risk=Count("id", filter=promises.AT_RISK),
    )
    return PromiseCounts(**counts)


def running_slacks(user: User, now: datetime) -> list[JobSlack]:
    """Return the slack of every admitted, unfinished job with a deadline and a plan."""
    jobs = visible_jobs(user).filter(state__in=PLANNED_STATES, deadline_at__isnull=False)
    slacks = []
    for job in jobs.only("id", "name", "deadline_at", "finished_at", "plan", "promised", "state"):
        slack = slack_seconds(job, now)
        if slack is not None:
            slacks.append(JobSlack(job.id, job.name, slack, job.promised))
    return slacks
