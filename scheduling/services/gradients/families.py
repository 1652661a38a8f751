"""Chooses the plan family of a newcomer: the best that it permits, as far as measurements show."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.choices import CurveState
from scheduling.core.runtime_plans.expert_families import with_gradients
from scheduling.core.runtime_plans.plan import PlanFamily, family_name
from scheduling.curve_keys import function_key_on, key_of_family
from scheduling.models import CurveLevel, GradientProfile, Job, ScalingCurve
from scheduling.models.functions import NOT_VOID
from scheduling.services.gradients.gradient_profiles import ask_for_family, has_winning_plan


def family_of_newcomer(function: str, unplanned: str, *, lossy: bool, codecs: Sequence[str]) -> str:
    """Return the family of a function's plans for a job with these permissions.

    Without measured gradients, or a plan that is predicted to win, this is the family of no plan. Once the
    curves of both families are measured, the faster one is chosen, whatever was predicted.

    Args:
        function: key of the function with its hyperparameters (`curve_keys.function_key_on`).
        unplanned: the function's family without gradient plans.
    """
    if not GradientProfile.objects.filter(key=function).exists():
        return unplanned
    family = family_name(lossy=lossy, codecs=codecs)
    if family not in tuple(PlanFamily):
        ask_for_family(function, family)
    if not has_winning_plan(function, family):
        return unplanned
    planned = with_gradients(unplanned, family)
    return unplanned if _lost(function, unplanned, planned) else planned


def _lost(function: str, unplanned: str, family: str) -> bool:
    """Return whether the family's curve is slower than that of no plan on the most GPUs on which both were
    measured. Void levels do not count."""
    keys = {key_of_family(function, one): one for one in (unplanned, family)}
    rates: dict[str, dict[int, float]] = {one: {} for one in keys.values()}
    levels = CurveLevel.objects.filter(NOT_VOID, curve__key__in=keys, curve__state=CurveState.READY)
    for key, gpus, rate in levels.values_list("curve__key", "gpus", "iterations_per_second"):
        rates[keys[key]][gpus] = rate
    dense, planned = rates[unplanned], rates[family]
    common = max(dense.keys() & planned.keys(), default=None)
    return common is not None and planned[common] < dense[common]


def curve_of_family(job: Job, family: str) -> ScalingCurve:
    """Return the curve under plans of a family, on the kind of GPU of the job's own curve; create it if
    needed."""
    assert job.curve is not None
    return ScalingCurve.objects.get_or_create(
        key=key_of_family(function_key_on(job, job.curve.gpu_kind), family),
        defaults={
            "function_digest": job.curve.function_digest,
            "data_digest": job.curve.data_digest,
            "gpu_kind": job.curve.gpu_kind,
            "plan_family": family,
            "hyperparameters": job.curve.hyperparameters,
        },
    )[0]
