"""Jobs in the API, limited to those that the caller may see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from cluster.models import Gpu
from projects.access import require_role
from projects.errors import NotFound
from projects.models import Role, User
from projects.prepared import PreparedValues
from scheduling.choices import AssignmentState, Purpose
from scheduling.models import Assignment, Generation, Job
from scheduling.models.functions import UNREAD_OF_VERSION
from scheduling.selectors.jobs.jobs_table import gpus_now
from scheduling.selectors.jobs.standing import with_history, without_history
from scheduling.selectors.scope.visibility import visible_jobs


def jobs_shown_to(user: User) -> QuerySet[Job]:
    """Return visible jobs with all fields of their representation, in a fixed number of queries."""
    held = Assignment.objects.filter(job=OuterRef("pk"), state=AssignmentState.HELD).order_by("id")
    emulated_kind = Gpu.objects.filter(kind=OuterRef("curve__gpu_kind"), emulated=True)
    return with_history(
        visible_jobs(user)
        .select_related("project", "owner", "function_version__function", "curve")
        .defer(UNREAD_OF_VERSION)
        .annotate(
            gpus=Coalesce(gpus_now(), Value(0)),
            gpu_kind=Coalesce(Subquery(held.values("gpu__kind")[:1]), "curve__gpu_kind"),
            emulated=Coalesce(Subquery(held.values("gpu__emulated")[:1]), Exists(emulated_kind)),
        )
    )


_EMULATED = PreparedValues(
    lambda kind: Gpu.objects.filter(kind=kind, emulated=True).order_by().values_list("pk")[:1]
)


def is_emulated_kind(kind: str) -> bool:
    """Return whether GPUs of this kind are emulated."""
    return bool(_EMULATED.ask(kind))


def as_submitted(job: Job) -> Job:
    """Return a job that was just stored in the form of `jobs_shown_to`: it has no GPUs and no history yet."""
    assert job.curve is not None  # every submission has one
    shown: Any = without_history(job)
    shown.gpus, shown.gpu_kind = 0, job.curve.gpu_kind
    shown.emulated = is_emulated_kind(job.curve.gpu_kind)
    return job


def job_get(user: User, job_id: str) -> Job:
    """Return one job.

    Raises:
        NotFound: there is none, or the person may not see it.
    """
    job = jobs_shown_to(user).filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id} among yours.")
    return job


def job_to_steer(user: User, job_id: str) -> Job:
    """Return one job that the person may change.

    Raises:
        NotFound: the person may not see it.
        NotAllowed: the person may see it but not change it.
    """
    job = job_get(user, job_id)
    require_role(user, job.project, Role.MEMBER)
    return job


def jobs_matching(jobs: QuerySet[Job], filters: Mapping[str, Any]) -> QuerySet[Job]:
    """Return the jobs that meet every given filter; given states are alternatives."""
    plain = {
        "project": "project__name",
        "service_class": "service_class",
        "promised": "promised",
        "at_risk": "at_risk",
        "owner": "owner__username",
        "function": "function_version__function__name",
        "state": "state__in",
        "submitted_after": "submitted_at__gte",
        "submitted_before": "submitted_at__lt",
        "deadline_before": "deadline_at__lt",
    }
    for name, lookup in plain.items():
        if filters.get(name) is not None:
            jobs = jobs.filter(**{lookup: filters[name]})
    for label in filters.get("label") or ():
        key, _, value = label.partition(":")
        jobs = jobs.filter(labels__contains={key: value})
    if filters.get("search"):
        text = filters["search"]
        jobs = jobs.filter(
            Q(pk__startswith=text.lower())
            | Q(name__icontains=text)
            | Q(function_version__function__name__icontains=text)
        )
    return jobs


def assignments_of(generation: Generation) -> list[Assignment]:
    """Return the workers' places of a generation read by `training_history`."""
    return list(generation.assignments.all())


def training_history(job: Job) -> QuerySet[Generation]:
    """Return the generations that trained, in order, with their servers and GPUs."""
    return (
        Generation.objects.filter(job=job, purpose=Purpose.TRAINING, live_at__isnull=False)
        .prefetch_related("assignments__gpu__server")
        .order_by("number")
    )
