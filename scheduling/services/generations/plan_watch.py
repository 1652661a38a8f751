"""Communication plans that lose are given up: their jobs train without a plan again (Zen 3.3.2, Cupcake 7).

A plan is given up where it was measured slower than no plan was, where it takes far longer than predicted and
no plan was never measured, where exchanges become lopsided, and where workers cannot follow it. Promises
outrank all of it: a promise that rests on levels of a plan that are faster than those without it is not
harmed by giving the plan up while its job runs.
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

#: What was measured varies: so much slower is no loss.
TOLERANCE = 0.02
MINIMUM_SAMPLES = 8
WINDOW = timedelta(seconds=60)


def watch_plans() -> int:
    """Give up the plans of running jobs that lose, and have these jobs train without. Returns how many."""
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
        if plan is None or not plan.carried_out:
            continue
        # A plan that was made since lies in the same row, and has not been tried.
        is_own = plan.made_at.isoformat() == generation.communication["made_at"]
        reason = _loses(generation, plan, is_own=is_own)
        if reason is not None:
            if is_own:
                give_up(plan, reason)
            given_up += 1
            renew(
                generation,
                reason="its communication plan was given up",
                event="plan_given_up",
                sentence=f"Leaves its communication plan: {reason}.",
            )
    return given_up


def give_up(plan: GradientPlan, reason: str) -> None:
    """No generation follows the plan from now on. Other inputs make another plan."""
    GradientPlan.objects.filter(pk=plan.pk).update(given_up=reason[:300])


def level_measured(job: Job, generation: Generation, gpus: int, iterations_per_second: float) -> None:
    """A level of a family was measured: note what its plan takes, and give it up where none is faster.

    The level stays as it was measured: without the plan the job is no slower than that.
    """
    if gradients_of(generation.runtime_plan.get("family", PlanFamily.DENSE)) == PlanFamily.DENSE:
        return
    for plan in _plans(job, generation, [gpus]):
        if plan.carried_out:
            GradientPlan.objects.filter(pk=plan.pk).update(measured_seconds=1.0 / iterations_per_second)
            without = _rate_without_plan(plan)
            if without is not None and iterations_per_second < (1.0 - TOLERANCE) * without:
                give_up(plan, _slower(iterations_per_second, without))


def could_not_follow(job: Job, generation: Generation, message: str) -> None:
    """Workers did not start under a plan: it is not tried again."""
    levels = (generation.profile or {}).get("levels", []) if generation.purpose == Purpose.PROFILING else []
    if gradients_of(generation.runtime_plan.get("family", PlanFamily.DENSE)) == PlanFamily.DENSE:
        return
    for plan in _plans(job, generation, [*levels, generation.world_size]):
        if plan.carried_out:
            give_up(plan, f"workers could not follow it: {message}")


def _plans(job: Job, generation: Generation, gpus: Sequence[int]) -> list[GradientPlan]:
    first = generation.assignments.select_related("gpu").order_by("rank").first()
    if first is None:
        return []
    found = GradientPlan.objects.filter(
        profile__key=function_key_on(job, first.gpu.kind),
        profile__gpus__in=gpus,
        family=gradients_of(generation.runtime_plan["family"]),
    )
    return list(found.select_related("profile"))


def _rate_without_plan(plan: GradientPlan) -> float | None:
    """Iterations a second as they were measured without a plan; None where they were not, or in vain."""
    keys = keys_without_plan(plan.profile.key)
    level = CurveLevel.objects.filter(NOT_VOID, curve__key__in=keys, gpus=plan.profile.gpus).first()
    return None if level is None else level.iterations_per_second


def _loses(generation: Generation, plan: GradientPlan, *, is_own: bool) -> str | None:
    """Why the generation's plan loses, in a sentence; None where it does not, or where too little was seen.

    `is_own`: whether `plan` is the one that the generation follows, not its successor.
    """
    since = max(timezone.now() - WINDOW, generation.live_at or timezone.now())
    rates = list(
        JobMetric.objects.filter(
            job_id=generation.job_id,
            generation=generation.number,
            measured_at__gt=since,
            iterations_per_second__gt=0,
        ).values_list("iterations_per_second", flat=True)
    )
    without = _rate_without_plan(plan)
    rate = median(rates) if len(rates) >= MINIMUM_SAMPLES else None
    if rate is not None:
        if is_own:
            GradientPlan.objects.filter(pk=plan.pk).update(measured_seconds=1.0 / rate)
        if without is not None and rate < (1.0 - TOLERANCE) * without:
            return _slower(rate, without)
    window: dict[str, Any] = generation.communication_window
    if not window or _promise_needs(generation, without):
        return None
    faster = rate is not None and without is not None and rate > without
    report = WindowReport(
        # Where it is known to be faster than none, a prediction that was too good is no reason.
        () if faster else window["iteration_seconds"],
        window["push_imbalance"],
        window["pull_imbalance"],
    )
    return reason_to_fall_back(report, generation.communication["chosen"]["predicted"]["iteration_seconds"])


def _promise_needs(generation: Generation, without: float | None) -> bool:
    """Whether the job's promise rests on a level that nothing but its plan is known to reach."""
    if not generation.job.promised:
        return False
    level = CurveLevel.objects.filter(curve=generation.curve_id, gpus=generation.world_size).first()
    return level is None or without is None or without < level.iterations_per_second


def _slower(rate: float, without: float) -> str:
    return f"{rate:.4g} iterations a second were measured under it, and {without:.4g} without any plan"
