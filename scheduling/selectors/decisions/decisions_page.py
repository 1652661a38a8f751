"""The decisions page for one person, without lines about other projects' jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.core.paginator import Page, Paginator

from projects.models import User
from scheduling.models import Decision, Job
from scheduling.selectors.decisions.decisions import decisions_shown_to, sentences
from scheduling.selectors.scope.hiding import Mask, mask_for
from scheduling.selectors.scope.visibility import visible_jobs


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """One job's part of a decision. ``outcome``: a word for the badge; ``text``: the reason."""

    job: Job
    outcome: str
    text: str
    gpus_before: int | None = None
    gpus_after: int | None = None


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision with its visible lines; ``hidden``: the number of others."""

    decision: Decision
    #: The events that made the planner decide.
    trigger: str
    #: Verdicts of newcomers.
    verdicts: list[DecisionLine]
    #: Jobs whose number of GPUs changes.
    changes: list[DecisionLine]
    #: Jobs whose promise no plan keeps.
    at_risk: list[Job]
    notes: list[str]
    hidden: int


def decisions_page(
    user: User, number: int, kind: str = "", job_id: str = "", page_size: int = 25
) -> tuple[list[DecisionRow], Page[Decision]]:
    """Return decisions about jobs that the person may see, newest first; operators see all."""
    decisions = decisions_shown_to(user).order_by("-id")
    if kind in Decision.Kind.values:
        decisions = decisions.filter(kind=kind)
    if job_id:
        decisions = decisions.filter(jobs=job_id)
    page = Paginator(decisions, page_size).get_page(number)
    named = {job_id for decision in page.object_list for job_id in _named_jobs(decision.summary)}
    jobs = visible_jobs(user).select_related("project").in_bulk(named)
    mask = mask_for(user, [text for decision in page.object_list for text in sentences(decision)])
    return [_row(decision, jobs, mask, operator=user.operates()) for decision in page.object_list], page


def _entries(summary: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [entry for entry in summary.get(key) or () if isinstance(entry, dict)]


def _job_id(entry: dict[str, Any]) -> str:
    return str(entry.get("job") or "")


def _named_jobs(summary: dict[str, Any]) -> set[str]:
    named = {_job_id(entry) for key in ("verdicts", "changes") for entry in _entries(summary, key)}
    return {job_id for job_id in named | {str(job_id) for job_id in summary.get("at_risk") or ()} if job_id}


def _row(decision: Decision, jobs: dict[str, Job], mask: Mask, *, operator: bool) -> DecisionRow:
    summary = decision.summary
    verdicts = [
        DecisionLine(jobs[_job_id(entry)], _verdict_word(entry), mask(str(entry.get("reason") or "")))
        for entry in _entries(summary, "verdicts")
        if _job_id(entry) in jobs
    ]
    changes = [
        DecisionLine(
            jobs[_job_id(entry)],
            str(entry.get("kind", "change")),
            mask(str(entry.get("reason") or "")),
            entry.get("gpus_before"),
            entry.get("gpus_after"),
        )
        for entry in _entries(summary, "changes")
        if _job_id(entry) in jobs
    ]
    at_risk = [jobs[str(job_id)] for job_id in summary.get("at_risk") or () if str(job_id) in jobs]
    return DecisionRow(
        decision=decision,
        trigger=mask(decision.trigger),
        verdicts=verdicts,
        changes=changes,
        at_risk=at_risk,
        # Notes may name any job, so only operators see them.
        notes=[str(note) for note in summary.get("notes") or ()] if operator else [],
        hidden=len(_named_jobs(summary) - set(jobs)),
    )


def _verdict_word(entry: dict[str, Any]) -> str:
    if not entry.get("admitted"):
        return "declined" if entry.get("final", True) else "refused here"
    return "promised" if entry.get("promised") else "admitted"
