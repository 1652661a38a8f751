"""Decisions in the API, without the parts about other projects' jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import BooleanField, Case, Q, QuerySet, Value, When

from projects.errors import NotFound
from projects.models import User
from scheduling.models import Decision, JobEvent
from scheduling.selectors.scope.hiding import Mask
from scheduling.selectors.scope.visibility import visible_jobs

#: Parts of a summary that do not concern single jobs.
HARMLESS = ("gpu_kind", "used_stored_plans")


def decisions_shown_to(user: User, *, kind: str | None = None, job: str | None = None) -> QuerySet[Decision]:
    """Return all decisions for an operator, else those about jobs that the person may see. Snapshots are
    not read.

    ``kind``: only decisions of this kind; ``job``: only those about the job of this id.
    """
    has_snapshot = Case(
        When(Q(snapshot__isnull=False), then=Value(True)), default=Value(False), output_field=BooleanField()
    )
    decisions = Decision.objects.defer("snapshot").annotate(has_snapshot=has_snapshot)
    if kind is not None:
        decisions = decisions.filter(kind=kind)
    if job is not None:
        decisions = decisions.filter(jobs=job)
    if user.operates():
        return decisions
    return decisions.filter(
        pk__in=Decision.jobs.through.objects.filter(job__in=visible_jobs(user)).values("decision")
    )


def decision_get(user: User, decision_id: int) -> Decision:
    """Return one decision.

    Raises:
        NotFound: there is none, or it concerns no job that the person may see.
    """
    decision = decisions_shown_to(user).filter(pk=decision_id).first()
    if decision is None:
        raise NotFound("There is no such decision about your jobs.")
    return decision


def decision_events(user: User, decision: Decision) -> QuerySet[JobEvent]:
    """Return the decision's events of jobs that the person may see."""
    return JobEvent.objects.filter(decision=decision, job__in=visible_jobs(user)).order_by("pk")


def jobs_to_show(user: User, decisions: Iterable[Decision]) -> set[str] | None:
    """Return ids of the named jobs that the person may see; None: all."""
    if user.operates():
        return None
    named = {job_id for decision in decisions for job_id in _named(decision.summary)}
    return set(visible_jobs(user).filter(pk__in=named).values_list("pk", flat=True))


def _named(summary: dict[str, Any]) -> set[str]:
    entries = [*(summary.get("verdicts") or ()), *(summary.get("changes") or ())]
    return {str(entry.get("job")) for entry in entries} | {
        str(job_id) for job_id in summary.get("at_risk") or ()
    }


def sentences(decision: Decision) -> list[str]:
    """Return all texts of a decision that may name a job."""
    entries = [*(decision.summary.get("verdicts") or ()), *(decision.summary.get("changes") or ())]
    return [decision.trigger, *(str(entry.get("reason") or "") for entry in entries)]


def summary_shown(summary: dict[str, Any], seen: set[str] | None, mask: Mask) -> dict[str, Any]:
    """Return the summary without jobs outside ``seen``. Notes may name any job, so they are removed as
    well."""
    if seen is None:
        return summary
    shown: dict[str, Any] = {name: summary[name] for name in HARMLESS if name in summary}
    for name in ("verdicts", "changes"):
        shown[name] = [
            {**entry, "reason": mask(str(entry.get("reason") or ""))}
            for entry in summary.get(name) or ()
            if entry.get("job") in seen
        ]
    shown["at_risk"] = [job_id for job_id in summary.get("at_risk") or () if job_id in seen]
    return shown
