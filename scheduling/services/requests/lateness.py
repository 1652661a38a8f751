"""Decisions that follow from time alone: jobs become late, and newcomers that cannot be measured in time
are declined."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from django.db.models import DurationField, ExpressionWrapper, F, QuerySet, Value
from django.db.models.expressions import RawSQL

from cluster.models import Cluster
from cluster.selectors.outages import Stopped
from projects.prepared import PreparedValues, time_hole
from scheduling.choices import (
    PLANNED_STATES,
    UNDECIDED_STATES,
    CurveState,
    JobEventKind,
    PromiseOutcome,
    ServiceClass,
)
from scheduling.models import Job
from scheduling.services.measuring.profiling import decide_by
from scheduling.services.rows.bulk import update_rows
from scheduling.services.rows.records import JobNote, record_all
from scheduling.services.rows.scoring import function_slower_than_profile, score_late
from scheduling.services.snapshots.kinds import all_reasons
from scheduling.services.verdicts.declining import decline_all
from scheduling.services.verdicts.missed_by_stops import note_stops, stops_to_blame
from scheduling.stored_verdict import AnswerCode, StoredVerdict


def late_jobs(cluster_id: int, now: datetime | RawSQL) -> QuerySet[Job]:
    """Return unfinished jobs whose deadline has passed, unless they are marked."""
    return Job.objects.filter(cluster=cluster_id, state__in=PLANNED_STATES, late=False, deadline_at__lte=now)


_LATE = PreparedValues(
    lambda cluster_id, now: late_jobs(cluster_id, time_hole(now)).order_by().values_list("pk")[:1]
)


def mark_late(cluster: Cluster, now: datetime, most: int) -> int:
    """Mark up to ``most`` unfinished jobs as late whose deadline has passed. Return their number. They
    keep running unless their owner stops them."""
    if not _LATE.any(cluster.pk, now):  # as in most passes
        return 0
    found = late_jobs(cluster.pk, now).select_related("cluster").defer("data", "hyperparameters", "plan")
    overdue = list(found.order_by("deadline_at", "id")[:most])
    stops = stops_to_blame(cluster, overdue, now)
    missed_by: dict[Stopped, list[Job]] = defaultdict(list)
    notes = []
    for job in overdue:
        job.late = True
        if job.promise_outcome == PromiseOutcome.OPEN and not function_slower_than_profile(job):
            score_late(job)
            if job.promise_outcome == PromiseOutcome.MISSED and job.pk in stops:
                missed_by[stops[job.pk]].append(job)
        notes.append(_late(job, stops.get(job.pk)))
    update_rows(overdue, ["late", "promise_outcome", "void_reason"])
    record_all(notes)
    note_stops(cluster, missed_by, now)
    return len(overdue)


def _late(job: Job, stop: Stopped | None) -> JobNote:
    text = f"Its deadline has passed at iteration {job.iterations_done} of {job.max_iterations}; it runs on."
    if stop is None:
        return JobNote(job, JobEventKind.LATE, text, {})
    detail = {"platform_stopped": str(stop)}
    return JobNote(job, JobEventKind.LATE, f"{text} The platform was stopped {stop}.", detail)


def decline_overdue(cluster: Cluster, now: datetime, most: int) -> int:
    """Decline up to ``most`` undecided jobs that were not measured by their latest time (`decide_by`).
    Return their number."""
    span = DurationField()
    unmeasured = Job.objects.filter(
        cluster=cluster, state__in=UNDECIDED_STATES, deadline_at__isnull=False, service_class=ServiceClass.SLO
    ).exclude(curve__state=CurveState.READY)
    overdue = unmeasured.annotate(
        left=ExpressionWrapper(F("deadline_at") - Value(now), output_field=span),
        passed=ExpressionWrapper(Value(now) - F("submitted_at"), output_field=span),
    ).filter(left__lte=F("passed"))
    jobs = list(overdue.select_related("curve").only(*_DECLINED_BY).order_by("submitted_at", "id")[:most])
    refusals = [
        (
            job,
            all_reasons(
                job,
                f"The function's speed is not known yet and could not be measured by "
                f"{decide_by(job):%H:%M:%S} UTC, half the time to its deadline"
                f"{_why_not_measured(job)}; ask for a later deadline, or "
                "submit again once the function has been measured.",
            ),
        )
        for job in jobs
    ]
    decline_all(refusals, AnswerCode.NOT_PROFILED_IN_TIME, now)
    return len(jobs)


def _why_not_measured(job: Job) -> str:
    told = StoredVerdict.from_json(job.verdict)
    waited = told.reason_code in (AnswerCode.QUOTA, AnswerCode.MEASURING_TURN)
    return f" ({told.reason.rstrip('.')})" if waited else ""


_DECLINED_BY = (
    "state", "cluster_id", "submitted_at", "deadline_at", "service_class", "refused_kinds", "verdict",
    "curve", "curve__gpu_kind",
)  # fmt: skip
