"""Limits of single projects, and of all projects of a person in sum, checked just before something becomes
final."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum

from cluster.selectors.outages import Stopped, outages_between, stopped_seconds
from projects.errors import QuotaExceeded
from projects.models import Project
from projects.prepared import PreparedValues
from projects.selectors import project_quota, user_quota
from projects.services.openness import lock_open_project
from scheduling.choices import TERMINAL_STATES, OfferState, Purpose, ServiceClass
from scheduling.core.question.quantities import duration_text
from scheduling.core.question.snapshot import StoredPlan
from scheduling.models import Bundle, Environment, Generation, Job, Offer
from scheduling.selectors.jobs.environments import UNBUILT_STATES
from scheduling.stored_verdict import DECLINED, AnswerCode, StoredVerdict

#: Limit of queued or running builds of one person's projects: a build may occupy the worker of all projects
#: for 25 minutes.
MOST_UNBUILT_ENVIRONMENTS = 10


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on the total use of some projects, and its owner."""

    whose: str
    amount: float
    project_id: int
    #: Creator of the projects if the limit covers all of them, else None.
    creator_id: int | None = None

    @property
    def project_ids(self) -> Any:
        """Return the ids of the projects, for a filter."""
        if self.creator_id is None:
            return [self.project_id]
        return Project.objects.filter(created_by=self.creator_id).values("pk")


def limits_on(project: Project, name: str) -> Iterator[Limit]:
    """Yield the project's own limit of that name, and that of all projects of its creator. Operators have
    none."""
    own = getattr(project_quota(project), name)
    if own is not None:
        yield Limit(f"Project {project.name}", own, project.pk)
    creator = project.created_by
    if creator is None or creator.operates():
        return
    in_sum = getattr(user_quota(creator), name)
    if in_sum is not None:
        yield Limit(f"All projects that {creator.username} created", in_sum, project.pk, creator.pk)


def _unfinished_jobs(**projects: Any) -> QuerySet[Job, tuple[int, int]]:
    found = Job.objects.filter(**projects).exclude(state__in=TERMINAL_STATES).order_by()
    return found.values_list("project").annotate(count=Count("pk"))


_UNFINISHED_IN_PROJECT = PreparedValues(lambda project: _unfinished_jobs(project=project))
_UNFINISHED_OF_CREATOR = PreparedValues(lambda creator: _unfinished_jobs(project__created_by=creator))


def check_active_jobs(project: Project) -> None:
    """Permit one more job. Locks the project and its creator until the transaction ends, so that the counts
    hold.

    Raises:
        QuotaExceeded: the number of unfinished jobs has reached a limit.
        Conflict: the project is archived.
    """
    limits = list(limits_on(lock_open_project(project, and_its_creator=True), "active_jobs"))
    creator = next((limit.creator_id for limit in limits if limit.creator_id is not None), None)
    if creator is not None:
        unfinished = dict(_UNFINISHED_OF_CREATOR.ask(creator))
    else:
        unfinished = dict(_UNFINISHED_IN_PROJECT.ask(project.pk) if limits else [])
    for limit in limits:
        in_sum = limit.creator_id is not None
        active = sum(unfinished.values()) if in_sum else unfinished.get(project.pk, 0)
        if active >= limit.amount:
            raise QuotaExceeded(
                f"{limit.whose} has {active} unfinished jobs and may have {limit.amount}; "
                "cancel one, wait, or ask an operator for more."
            )


def check_bundle_bytes(project: Project, digest: str, size_bytes: int) -> None:
    """Permit one more bundle; the same bytes count once.

    Raises:
        QuotaExceeded: the bundles would exceed a limit of bytes.
    """
    for limit in limits_on(project, "stored_bundle_bytes"):
        own = Bundle.objects.filter(functionversion__function__project__in=limit.project_ids).distinct()
        if own.filter(digest=digest).exists():
            continue
        total = Bundle.objects.filter(digest__in=own.values("digest")).aggregate(bytes=Sum("size_bytes"))
        stored = total["bytes"] or 0
        if stored + size_bytes > limit.amount:
            raise QuotaExceeded(
                f"{limit.whose} stores {stored} bytes of bundles and may store {limit.amount}; "
                f"this one has {size_bytes}. An operator can raise the limit."
            )


def check_unbuilt_environments(project: Project, digest: str) -> None:
    """Permit one more environment in the queue. The caller holds the rows of the project and its creator.

    Raises:
        QuotaExceeded: the number of other unbuilt environments has reached the limit.
    """
    creator = project.created_by
    whose = f"Project {project.name} waits"
    unbuilt = Environment.objects.filter(state__in=UNBUILT_STATES).exclude(pk=digest)
    if creator is None:
        unbuilt = unbuilt.filter(project=project)
    else:
        whose = f"The projects that {creator.username} created wait"
        unbuilt = unbuilt.filter(project__created_by=creator)
    count = unbuilt.count()
    if count >= MOST_UNBUILT_ENVIRONMENTS:
        raise QuotaExceeded(
            f"{whose} for {count} builds of requirements and may wait for {MOST_UNBUILT_ENVIRONMENTS}; "
            "wait until one ends, or cancel one."
        )


def profiling_refusal(project: Project, now: datetime) -> str | None:
    """Return why the project may not measure any more today, by its own limit or by that of its creator's
    projects; None if it may.

    Measurements count while they held GPUs and the platform ran.
    """
    since = now - timedelta(days=1)
    for limit in limits_on(project, "profiling_seconds_per_day"):
        runs = Generation.objects.filter(
            # An earlier measurement counts from a day ago on.
            Q(retired_at__isnull=True) | Q(retired_at__gt=since),
            job__project__in=limit.project_ids,
            purpose=Purpose.PROFILING,
            held_at__isnull=False,
        )
        spent = 0.0
        outages: dict[int, list[Stopped]] = {}
        for cluster_id, held_at, retired_at in runs.values_list("job__cluster", "held_at", "retired_at"):
            assert held_at is not None
            if cluster_id not in outages:
                outages[cluster_id] = outages_between(cluster_id, since, now)
            begin, end = max(held_at, since), retired_at or now
            spent += (end - begin).total_seconds() - stopped_seconds(outages[cluster_id], begin, end)
        if spent >= limit.amount:
            return (
                f"{limit.whose} measured functions for {duration_text(round(spent))} within a day; the limit "
                f"is {duration_text(limit.amount)}; measuring goes on when the oldest measurements are a day "
                "old, or when an operator raises the limit"
            )
    return None


class PromiseQuotas:
    """Remaining quotas of promises for one decision's verdicts. GPU hours of open promises and offers are
    summed once.

    ``in_place_of``: id of a job whose own promise and offer do not count, since it asks for another.
    """

    def __init__(self, now: datetime, *, in_place_of: str = "") -> None:
        self._now = now
        self._asking = in_place_of
        self._limits: dict[int, list[Limit]] = {}
        self._held: dict[str, float] = {}

    def refusal(self, project: Project, plan: StoredPlan) -> str | None:
        """Return why the project may not be promised this plan; None if it may, and then the plan counts
        as held."""
        if project.pk not in self._limits:
            self._limits[project.pk] = list(limits_on(project, "promised_gpu_hours"))
        limits = self._limits[project.pk]
        if not limits:
            return None
        wanted = gpu_hours(plan, self._now.timestamp())
        for limit in limits:
            if limit.whose not in self._held:
                self._held[limit.whose] = self._held_under(limit)
            held = self._held[limit.whose]
            if held + wanted > limit.amount:
                return (
                    f"{limit.whose} may hold promises for {limit.amount:g} GPU hours; "
                    f"it holds {held:.2f} and this job needs {wanted:.2f}."
                )
        for limit in limits:
            self._held[limit.whose] += wanted
        return None

    def _held_under(self, limit: Limit) -> float:
        promises = Job.objects.filter(project__in=limit.project_ids, promised=True)
        promises = promises.exclude(state__in=TERMINAL_STATES).exclude(pk=self._asking)
        # Accepting an offer does not check the quota again.
        offers = Offer.objects.filter(project__in=limit.project_ids, state=OfferState.OPEN)
        offers = offers.filter(valid_until__gt=self._now).exclude(job=self._asking)
        held = (*promises.values_list("plan", flat=True), *offers.values_list("plan", flat=True))
        return sum(_stored_gpu_hours(stored, self._now.timestamp()) for stored in held if stored)


def refused_by_quota(
    answer: StoredVerdict, refusal: str, service_class: str, code: AnswerCode = AnswerCode.QUOTA
) -> StoredVerdict:
    """Return the answer to a job that only the quota (or another ``code``) keeps from a promise: a firm
    deadline is declined, any other job runs without a promise."""
    unpromised = replace(answer, reason_code=code, minimum_satisfactory_share=(), counts_on="")
    if service_class != ServiceClass.SLO:
        return replace(unpromised, reason=f"It runs without a promise: {refusal}")
    return replace(
        unpromised,
        decision=DECLINED,
        reason=refusal,
        planned_start_at=None,
        planned_finish_at=None,
        slack_seconds=None,
    )


def without_copies(
    answer: StoredVerdict, shortfall: str, service_class: str, *, promised: bool
) -> StoredVerdict:
    """Return the answer to a job whose requested copies in memory have no room: no deadline is promised
    with fewer copies; without a promise it runs with those that have room."""
    if promised:
        return refused_by_quota(answer, f"{shortfall}.", service_class, AnswerCode.PROTECTION)
    return replace(answer, reason=f"{answer.reason} {shortfall}: it runs with fewer.")


def gpu_hours(plan: StoredPlan, since: float) -> float:
    """Return the GPU hours that the plan holds after ``since``, up to its finish."""
    return _gpu_hours(zip(plan.start, plan.end, plan.gpus, strict=True), plan.finish_at, since)


def _stored_gpu_hours(stored: Mapping[str, Any], since: float) -> float:
    """Return the same for a plan as stored in a row (`plan_json.plan_to_json`)."""
    pieces = zip(stored["start"], stored["end"], stored["gpus"], strict=True)
    return _gpu_hours(pieces, stored["finish_at"], since)


def _gpu_hours(
    pieces: Iterable[tuple[float, float | None, int]], finish_at: float | None, since: float
) -> float:
    """Return the GPU hours after ``since``. ``pieces``: start, end (None: never) and GPUs of each."""
    finish = math.inf if finish_at is None else float(finish_at)
    hours = 0.0
    for start, end, gpus in pieces:
        until = finish if end is None else min(float(end), finish)
        if math.isfinite(until):
            hours += max(0.0, until - max(float(start), since)) * int(gpus) / 3600
    return hours
