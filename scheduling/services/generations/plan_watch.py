"""Gives up communication plans that lose; their jobs train without a plan again (Zen 3.3.2, Cupcake).

A plan loses if it was measured slower than training without a plan; if it takes far longer than predicted and
training without a plan was never measured; if exchanges become lopsided; or if workers cannot follow it.
While a promise needs a level that is known to be reached only with the plan, a running job gives the plan up
only if it was measured slower than training without a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from statistics import median
from typing import Any

from django.utils import timezone

from communication.zen.drift import WindowReport, reason_to_fall_back
from scheduling.choices import GenerationState, Goal, JobState, Purpose
from scheduling.core.runtime_plans.expert_families import gradients_of
from scheduling.core.runtime_plans.plan import PlanFamily
from scheduling.curve_keys import function_key_on, keys_without_plan
from scheduling.models import CurveLevel, Generation, GradientPlan, Job, JobMetric
from scheduling.models.functions import NOT_VOID
from scheduling.services.generations.renewing import renew

#: Relative slowdown that is within the variation of measurements.
TOLERANCE = 0.02
MINIMUM_SAMPLES = 8
WINDOW = timedelta(seconds=60)


def watch_plans() -> int:
    """Give up losing plans of running jobs, which then train without a plan. Return the number of jobs."""
    given_up = 0
    live = Generation.objects.filter(
        purpose=Purpose.TRAINING,
        state=GenerationState.LIVE,
        goal=Goal.TRAIN,
        job__state=JobState.RUNNING,
        communication__has_key="plan",
    )
    for generation in live.select_related("job", "curve"):
        plan = (
            GradientPlan.objects.select_related("profile").filter(pk=generation.communication["plan"]).first()
        )
        if plan is None:
            continue
        # A later plan, or none, may have replaced the followed one in the same row, and has not been tried.
        is_own = plan.made_at.isoformat() == generation.communication["made_at"]
        reason = _loses(generation, plan, is_own=is_own)
        if reason is not None:
            if is_own and plan.carried_out:
                give_up_plan(plan, reason)
            given_up += renew(
                generation,
                reason="its communication plan was given up",
                event="plan_given_up",
                sentence=f"Leaves its communication plan: {reason}.",
            )
    return given_up


def give_up_plan(plan: GradientPlan, reason: str) -> None:
    """Stop using the plan for new generations. Other inputs make another plan."""
    GradientPlan.objects.filter(pk=plan.pk, made_at=plan.made_at).update(given_up=reason[:300])


def level_measured(job: Job, generation: Generation, gpus: int, iterations_per_second: float) -> None:
    """Store the measured iteration time of a level's plan, and give the plan up if no plan is faster.

    The level keeps the measured speed: without the plan the job is no slower.
    """
    if gradients_of(generation.runtime_plan.get("family", PlanFamily.DENSE)) == PlanFamily.DENSE:
        return
    for plan in _plans(job, generation, [gpus]):
        if plan.carried_out:
            GradientPlan.objects.filter(pk=plan.pk).update(measured_seconds=1.0 / iterations_per_second)
            without = _rate_without_plan(plan)
            if without is not None and iterations_per_second < (1.0 - TOLERANCE) * without:
                give_up_plan(plan, _slower(iterations_per_second, without))


def could_not_follow(job: Job, generation: Generation, message: str) -> None:
    """Give up plans under which workers did not start."""
    levels = (generation.profile or {}).get("levels", []) if generation.purpose == Purpose.PROFILING else []
    if gradients_of(generation.runtime_plan.get("family", PlanFamily.DENSE)) == PlanFamily.DENSE:
        return
    for plan in _plans(job, generation, [*levels, generation.world_size]):
        if plan.carried_out:
            give_up_plan(plan, f"workers could not follow it: {message}")


def _plans(job: Job, generation: Generation, gpus: Sequence[int]) -> list[GradientPlan]:
    first = generation.assignments.select_related("gpu").order_by("rank").first()
    if first is None:
        return []
    found = GradientPlan.objects.filter(
        profile__key=function_key_on(job, first.gpu.kind),
        profile__gpus__in=gpus,
        family=gradients_of(generation.runtime_plan["family"]),
        # A later plan in the same row was not tried.
        made_at__lte=generation.created_at,
    )
    return list(found.select_related("profile"))


def _rate_without_plan(plan: GradientPlan) -> float | None:
    """Return the iterations a second measured without a plan; None if there is no valid measurement."""
    keys = keys_without_plan(plan.profile.key)
    level = CurveLevel.objects.filter(NOT_VOID, curve__key__in=keys, gpus=plan.profile.gpus).first()
    return None if level is None else level.iterations_per_second


def _loses(generation: Generation, plan: GradientPlan, *, is_own: bool) -> str | None:
    """Return why the generation's plan loses, or None if it does not or if too little was measured.

    `is_own`: whether `plan` is the one that the generation follows, not its successor.
    """
    without = _rate_without_plan(plan)
    rate = _recent_rate(generation)
    if rate is not None:
        if is_own:
            GradientPlan.objects.filter(pk=plan.pk, made_at=plan.made_at).update(measured_seconds=1.0 / rate)
        if without is not None and rate < (1.0 - TOLERANCE) * without:
            return _slower(rate, without)
    window: dict[str, Any] = generation.communication_window
    if not window or _promise_needs(generation, without):
        return None
    faster = rate is not None and without is not None and rate > without
    report = WindowReport(
        # If the plan is known to be faster than none, an optimistic prediction is no reason.
        () if faster else window["iteration_seconds"],
        window["push_imbalance"],
        window["pull_imbalance"],
    )
    return reason_to_fall_back(report, generation.communication["chosen"]["predicted"]["iteration_seconds"])


def _recent_rate(generation: Generation) -> float | None:
    """Return the median iterations a second of the last `WINDOW`, or of the last `MINIMUM_SAMPLES` reports if
    these take longer; None if there are fewer."""
    told = JobMetric.objects.filter(
        job_id=generation.job_id,
        generation=generation.number,
        measured_at__gt=generation.live_at or timezone.now(),
        iterations_per_second__gt=0,
    )
    rates = told.order_by("-iteration").values_list("iterations_per_second", flat=True)
    recent = list(rates.filter(measured_at__gt=timezone.now() - WINDOW))
    if len(recent) < MINIMUM_SAMPLES:
        recent = list(rates[:MINIMUM_SAMPLES])
    return median(recent) if len(recent) >= MINIMUM_SAMPLES else None


def _promise_needs(generation: Generation, without: float | None) -> bool:
    """Return whether the job's promise needs a level that is known to be reached only with the plan."""
    if not generation.job.promised:
        return False
    level = CurveLevel.objects.filter(curve=generation.curve_id, gpus=generation.world_size).first()
    return level is None or without is None or without < level.iterations_per_second


def _slower(rate: float, without: float) -> str:
    return f"{rate:.4g} iterations a second were measured under it, and {without:.4g} without any plan"
