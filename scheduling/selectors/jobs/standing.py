"""One sentence on a job's deadline, shown at the top of its page and by the command line.

The verdict is the answer that was given once. A job that missed its deadline says by how much and why,
whatever the verdict was.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Prefetch, QuerySet

from scheduling.choices import JobEventKind, JobState, PromiseOutcome, VoidReason
from scheduling.core.question.quantities import duration_text
from scheduling.models import Job, JobEvent
from scheduling.selectors.jobs.job_times import planned_finish_at

_HISTORY_ATTRIBUTE = "history_of_a_miss"
_KINDS_OF_A_MISS = (JobEventKind.INTERRUPTED, JobEventKind.AT_RISK, JobEventKind.LATE)
_VOID = {
    VoidReason.PAUSED: "its owner paused it",
    VoidReason.CANCELLED: "it was cancelled",
    VoidReason.FUNCTION_FAILED: "its function failed",
    VoidReason.FUNCTION_SLOWER: "train() alone was slower than measured",
    VoidReason.FAILED_REPEATEDLY: "it failed repeatedly without progress",
    VoidReason.FAILURES: "more servers failed than the reserve covers",
}


@dataclass(frozen=True, slots=True)
class JobStanding:
    """A job's standing. ``code``: `missed`, `late`, `void`, `at_risk`, `met`, or empty if the verdict
    suffices. ``text``: a sentence, or empty."""

    code: str = ""
    text: str = ""


def standing(job: Job, now: datetime) -> JobStanding:
    """Return the job's standing against its deadline. Reads its history only if it missed and
    `with_history` has not read it."""
    outcome = PromiseOutcome(job.promise_outcome)
    if outcome == PromiseOutcome.MET:
        return JobStanding("met", f"The promise was kept{_against(job)}.")
    if outcome == PromiseOutcome.MISSED:
        return JobStanding("missed", f"The promise was missed: {_overdue(job, now)}. {_why(job)}")
    if outcome == PromiseOutcome.VOID:
        text = f"The promise is void: {_VOID.get(VoidReason(job.void_reason), 'it ended early')}"
        overdue = f"; {_overdue(job, now)}" if job.late else ""
        return JobStanding("void", f"{text}{overdue}.{_plan(job)}")
    if job.late:
        return JobStanding("late", f"Late: {_overdue(job, now)}; it had no promise.{_plan(job)}")
    if job.at_risk and not job.finished():
        return JobStanding("at_risk", f"At risk: no plan meets its deadline any more.{_plan(job)}")
    return JobStanding()


def with_history(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Prefetch the history that standings need, in one more query however many jobs missed."""
    missed = JobEvent.objects.filter(kind__in=_KINDS_OF_A_MISS, job__promise_outcome=PromiseOutcome.MISSED)
    return jobs.prefetch_related(
        Prefetch("events", missed.order_by("happened_at", "id"), to_attr=_HISTORY_ATTRIBUTE)
    )


def without_history(job: Job) -> Job:
    """Mark a new job as without history, as `with_history` would read it."""
    setattr(job, _HISTORY_ATTRIBUTE, [])
    return job


def _history(job: Job) -> list[JobEvent]:
    """Return the job's interruptions, when it was at risk, and that it became late, in order."""
    read: list[JobEvent] | None = getattr(job, _HISTORY_ATTRIBUTE, None)
    if read is None:
        return list(job.events.filter(kind__in=_KINDS_OF_A_MISS).order_by("happened_at", "id"))
    return read


def _overdue(job: Job, now: datetime) -> str:
    assert job.deadline_at is not None
    if job.finished_at is not None:
        late = duration_text((job.finished_at - job.deadline_at).total_seconds())
        return (
            f"it ended {late} after its deadline"
            if job.state == JobState.COMPLETED
            else "it did not complete"
        )
    passed = duration_text((now - job.deadline_at).total_seconds())
    return f"its deadline passed {passed} ago at iteration {job.iterations_done:,} of {job.max_iterations:,}"


def _against(job: Job) -> str:
    if job.deadline_at is None or job.finished_at is None:
        return ""
    return f", {duration_text((job.deadline_at - job.finished_at).total_seconds())} before the deadline"


def _plan(job: Job) -> str:
    """Return the planned end of an unfinished job, compared with its deadline."""
    finish = planned_finish_at(job)
    if job.finished() or finish is None:
        return ""
    at = f"{finish:%Y-%m-%d %H:%M:%S} UTC"
    if job.deadline_at is None:
        return f" It is planned to end at {at}."
    seconds = (finish - job.deadline_at).total_seconds()
    return (
        f" It is planned to end at {at}, {duration_text(seconds)} {'after' if seconds > 0 else 'before'} its "
        f"deadline."
    )


def _why(job: Job) -> str:
    """Return the cause of a miss from the job's history."""
    history = _history(job)
    if stops := [told.detail["platform_stopped"] for told in history if "platform_stopped" in told.detail]:
        return f"The platform was stopped {stops[-1]}.{_plan(job)}"
    if lost := [told for told in history if told.kind == JobEventKind.INTERRUPTED]:
        times = sum(told.detail.get("times", 1) for told in lost)
        often = "once" if times == 1 else f"{times} times"
        return f"It was interrupted {often}; the last time: {lost[-1].message}{_plan(job)}"
    if at_risk := [told for told in history if told.kind == JobEventKind.AT_RISK]:
        since = at_risk[0].happened_at
        return f"No plan had met the deadline since {since:%Y-%m-%d %H:%M:%S} UTC.{_plan(job)}"
    return f"Its work took longer than planned.{_plan(job)}"
