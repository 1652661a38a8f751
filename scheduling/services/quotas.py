"""The operator's hook just before a yes becomes final (ElasticFlow section 4.1): quotas, later prices."""

from __future__ import annotations

import math

from django.utils import timezone

from scheduling.choices import TERMINAL_STATES
from scheduling.core.snapshot import StoredPlan
from scheduling.models import Job
from scheduling.services.plan_json import plan_from_json


def promise_refusal(job: Job, plan: StoredPlan) -> str | None:
    """Why the project may not be promised this plan; None when it may."""
    quota = getattr(job.project, "quota", None)
    if quota is None or quota.promised_gpu_hours is None:
        return None
    open_promises = Job.objects.filter(project=job.project, promised=True).exclude(state__in=TERMINAL_STATES)
    now = timezone.now().timestamp()
    held = sum(
        gpu_hours(stored, now)
        for other in open_promises.exclude(pk=job.pk).only("plan")
        if (stored := plan_from_json(other.plan)) is not None
    )
    wanted = gpu_hours(plan, now)
    if held + wanted <= quota.promised_gpu_hours:
        return None
    return (
        f"Project {job.project.name} may hold promises for {quota.promised_gpu_hours:g} GPU hours; "
        f"it holds {held:.2f} and this job needs {wanted:.2f}."
    )


def gpu_hours(plan: StoredPlan, since: float) -> float:
    """GPU hours that the plan still holds after ``since``, up to its finish."""
    hours = 0.0
    for start, end, gpus in zip(plan.start, plan.end, plan.gpus, strict=True):
        until = min(float(end), float(plan.finish_at))
        if math.isfinite(until):
            hours += max(0.0, until - max(float(start), since)) * int(gpus) / 3600
    return hours
