"""The jobs table: filters, search and pages of the jobs that a person may see."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import OuterRef, Q, QuerySet, Subquery

from projects.models import User
from scheduling.choices import TERMINAL_STATES, GenerationState, JobState, PromiseOutcome, ServiceClass
from scheduling.models import Generation, Job
from scheduling.models.functions import UNREAD_OF_VERSION
from scheduling.selectors.jobs.job_times import (
    planned_finish_at,
    planned_start_at,
    progress_share,
    slack_seconds,
)
from scheduling.selectors.scope.visibility import steerable_project_ids, visible_jobs

#: Options of the "show" filter besides single states.
PROMISE_FILTERS = {
    "promised": "Promised",
    "at_risk": "At risk",
    "late": "Late",
    "met": "Met",
    "missed": "Missed",
    "void": "Void",
}


@dataclass(frozen=True, slots=True)
class JobFilters:
    """The requested filters. Unknown values were dropped when the request was read."""

    search: str = ""
    #: Listed states; empty: all.
    states: tuple[JobState, ...] = ()
    #: Listed class; None: all.
    service_class: ServiceClass | None = None
    project: str = ""
    promise: str = ""
    #: Whether only the user's own jobs are listed.
    mine: bool = False

    def any(self) -> bool:
        """Return whether any filter is set; an empty table shows another text then."""
        return bool(
            self.search or self.states or self.service_class or self.project or self.promise or self.mine
        )


@dataclass(frozen=True, slots=True)
class JobRow:
    """One line of the table. ``slack_seconds`` is None without a deadline or a plan."""

    job: Job
    gpus: int
    #: 0 to 1.
    progress: float
    planned_start_at: datetime | None
    planned_finish_at: datetime | None
    slack_seconds: float | None
    #: Whether the user may pause, resume or cancel the job.
    may_steer: bool


@dataclass(frozen=True, slots=True)
class JobsPage:
    """One page of rows and what the pager needs."""

    rows: list[JobRow]
    page: Page[Any]
    filters: JobFilters = field(default_factory=JobFilters)


def gpus_now() -> Subquery:
    """Return a subquery for the GPUs on which a job trains or is measured now; null without any."""
    live = Generation.objects.filter(job=OuterRef("pk"), state=GenerationState.LIVE).order_by("-purpose")
    return Subquery(live.values("world_size")[:1])


def filtered_jobs(user: User, filters: JobFilters) -> QuerySet[Job]:
    """Return visible jobs that match every filter, newest first. Search covers id, name, function and
    labels."""
    jobs = visible_jobs(user)
    if filters.states:
        jobs = jobs.filter(state__in=filters.states)
    if filters.service_class:
        jobs = jobs.filter(service_class=filters.service_class)
    if filters.project:
        jobs = jobs.filter(project__name=filters.project)
    if filters.mine:
        jobs = jobs.filter(owner=user)
    if filters.search:
        jobs = jobs.filter(_matches(filters.search))
    return _with_promise(jobs, filters.promise).order_by("-submitted_at", "-id")


def _matches(text: str) -> Q:
    label, equals, value = text.partition("=")
    matches = (
        Q(id__startswith=text) | Q(name__icontains=text) | Q(function_version__function__name__icontains=text)
    )
    return matches | Q(labels__contains={label.strip(): value.strip()}) if equals else matches


def _with_promise(jobs: QuerySet[Job], promise: str) -> QuerySet[Job]:
    if promise in (PromiseOutcome.MET, PromiseOutcome.MISSED, PromiseOutcome.VOID):
        return jobs.filter(promise_outcome=promise)
    if promise in ("promised", "at_risk", "late"):
        return jobs.exclude(state__in=TERMINAL_STATES).filter(**{promise: True})
    return jobs


def jobs_page(user: User, filters: JobFilters, page: int, now: datetime, page_size: int = 25) -> JobsPage:
    """Return one page; a number beyond the last page gives the last."""
    jobs = filtered_jobs(user, filters)
    shown = jobs.select_related("project", "owner", "function_version__function").annotate(gpus=gpus_now())
    shown = shown.defer(UNREAD_OF_VERSION, "data", "hyperparameters")
    paginator = Paginator(shown, page_size)
    found: Page[Any] = paginator.get_page(page)
    steerable = steerable_project_ids(user)
    rows = [
        JobRow(
            job=job,
            gpus=getattr(job, "gpus", None) or 0,
            progress=progress_share(job),
            planned_start_at=planned_start_at(job, now),
            planned_finish_at=planned_finish_at(job),
            slack_seconds=slack_seconds(job, now),
            may_steer=steerable is None or job.project_id in steerable,
        )
        for job in found.object_list
    ]
    return JobsPage(rows=rows, page=found, filters=filters)


def has_any_job(user: User) -> bool:
    """Return whether the person may see any job; otherwise the page explains how to submit one."""
    return visible_jobs(user).exists()
