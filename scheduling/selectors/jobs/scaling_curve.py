"""A job's scaling curve on pages: its measured levels, and those of other plan families."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduling.choices import GenerationState, Lossy, Purpose
from scheduling.core.runtime_plans.expert_families import with_gradients
from scheduling.core.runtime_plans.plan import PlanFamily, family_name
from scheduling.curve_keys import function_key_on, key_of_family
from scheduling.models import CurveLevel, Generation, Job, ScalingCurve


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured levels of the job's scaling curve, ascending, and the job's place on it.

    ``family``: the plan family of the measurements. ``others``: levels of the same function under other plan
    families.
    """

    levels: list[CurveLevel]
    gpu_kind: str
    complete: bool
    #: GPUs that the job has now.
    gpus_now: int
    family: str = PlanFamily.DENSE.value
    others: dict[str, list[CurveLevel]] = field(default_factory=dict)


def curve_levels(curve: ScalingCurve) -> list[CurveLevel]:
    """Return the measured levels of a curve, ascending."""
    return list(curve.levels.all())


def curve(job: Job) -> Curve | None:
    """Return the job's scaling curve, or None if it has none."""
    if job.curve is None:
        return None
    live = Generation.objects.filter(job=job, purpose=Purpose.TRAINING, state=GenerationState.LIVE).first()
    return Curve(
        levels=curve_levels(job.curve),
        gpu_kind=job.curve.gpu_kind,
        complete=job.curve.complete,
        gpus_now=live.world_size if live else 0,
        family=job.curve.plan_family,
        others=_of_other_families(job, job.curve),
    )


def _of_other_families(job: Job, curve: ScalingCurve) -> dict[str, list[CurveLevel]]:
    """Return the function's levels measured under other plan families on this kind of GPU, by family."""
    families = {PlanFamily.DENSE.value, *map(str, PlanFamily)}
    if job.lossy == Lossy.ALLOWED:
        families.add(family_name(lossy=True, codecs=job.codecs))
    families = {with_gradients(curve.plan_family, family) for family in families}
    function = function_key_on(job, curve.gpu_kind)
    keys = {key_of_family(function, family): family for family in sorted(families - {curve.plan_family})}
    found = ScalingCurve.objects.filter(key__in=keys).prefetch_related("levels").order_by("plan_family")
    return {one.plan_family: list(one.levels.all()) for one in found if one.levels.all()}
