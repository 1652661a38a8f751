"""What the passing of time decides: jobs become late, and a newcomer that cannot be measured in time is
declined."""

from __future__ import annotations

from datetime import datetime

from cluster.models import Cluster
from scheduling.choices import PLANNED_STATES, UNDECIDED_STATES, CurveState, PromiseOutcome, ServiceClass
from scheduling.models import Job
from scheduling.services.declining import decline
from scheduling.services.kinds import all_reasons
from scheduling.services.profiling import decide_by
from scheduling.services.records import record
from scheduling.services.scoring import function_slower_than_profile, score_late
from scheduling.stored_verdict import AnswerCode


def mark_late(cluster: Cluster, now: datetime) -> int:
    """Note the unfinished jobs whose deadline has passed. They keep running unless their owner says
    otherwise."""
    overdue = Job.objects.filter(cluster=cluster, state__in=PLANNED_STATES, late=False, deadline_at__lte=now)
    if not overdue.exists():  # as in most passes
        return 0
    for job in overdue:
        job.late = True
        fields = ["late"]
        if job.promise_outcome == PromiseOutcome.OPEN and not function_slower_than_profile(job):
            score_late(job)
            fields += ["promise_outcome", "void_reason"]
        job.save(update_fields=fields)
        record(
            job,
            "late",
            f"Its deadline has passed at iteration {job.iterations_done} of {job.max_iterations}; it runs "
            f"on.",
        )
    return len(overdue)


def decline_overdue(cluster: Cluster, now: datetime) -> int:
    """Decline the undecided jobs that could not be measured by their latest time."""
    count = 0
    undecided = Job.objects.filter(
        cluster=cluster, state__in=UNDECIDED_STATES, deadline_at__isnull=False, service_class=ServiceClass.SLO
    ).exclude(curve__state=CurveState.READY)
    for job in undecided.select_related("function_version", "curve"):
        latest = decide_by(job)
        if latest is None or now < latest:
            continue
        reason = all_reasons(
            job,
            f"The function's speed is not known yet and could not be measured by {latest:%H:%M:%S} UTC, "
            "half the time to its deadline; ask for a later deadline, or submit again once the function "
            "has been measured.",
        )
        decline(job, AnswerCode.NOT_PROFILED_IN_TIME, reason, now)
        count += 1
    return count
