"""Levels on which a worker ran out of memory while its function was measured. They count as no level.

Fewer GPUs mean larger local batches. So a function that does not fit on some number of GPUs fits on no
smaller number, and may fit on a larger one.
"""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Q, QuerySet
from django.utils import timezone

from cluster.models import Cluster, Gpu
from scheduling.choices import CurveState, GenerationState, JobEventKind, Purpose, RetireReason
from scheduling.core.question.quantities import gpus_text
from scheduling.core.question.worker_counts import measurable_levels
from scheduling.models import CurveLevel, Generation, Job, ScalingCurve
from scheduling.services.generations.generations import retire
from scheduling.services.memory.expert_levels import worker_counts_of
from scheduling.services.rows.records import planning_fact_changed, record
from scheduling.services.rows.wakeups import wake

_UNFIT = "unfit_level"


def largest_unfit_level(curve: ScalingCurve) -> int:
    """Return the largest number of GPUs that is known not to hold the function; 0 if none is known."""
    return largest_unfit_levels([curve.pk]).get(curve.pk, 0)


def largest_unfit_levels(curve_ids: Collection[int]) -> dict[int, int]:
    """Return `largest_unfit_level` of many curves in one query, by primary key; curves without one are
    left out."""
    measured_for = Q(curve__in=curve_ids) | Q(curve__isnull=True, job__curve__in=curve_ids)
    found: dict[int, int] = {}
    for own, of_job, profile in Generation.objects.filter(
        measured_for, purpose=Purpose.PROFILING, profile__has_key=_UNFIT
    ).values_list("curve", "job__curve", "profile"):
        curve_id = of_job if own is None else own
        found[curve_id] = max(found.get(curve_id, 0), int((profile or {})[_UNFIT]))
    return found


def level_did_not_fit(
    job: Job, generation: Generation, curve: ScalingCurve | None, message: str, cluster: Cluster
) -> None:
    """End a measurement in which a worker ran out of memory. If no level is known, larger ones are measured
    next, if there are any.

    The caller holds the cluster's row.
    """
    if (
        curve is None
        or _UNFIT in (generation.profile or {})
        or generation.retired_because == RetireReason.MEASURED
    ):
        return
    levels = [int(level) for level in (generation.profile or {}).get("levels", [])]
    known = set(CurveLevel.objects.filter(curve=curve).values_list("gpus", flat=True))
    reached = CurveLevel.objects.filter(
        curve=curve, gpus__in=levels, measured_at__gte=generation.created_at
    ).values_list("gpus", flat=True)
    unfit = next((level for level in levels if level > max(reached, default=0)), max(levels, default=1))
    generation.profile = {**(generation.profile or {}), _UNFIT: unfit}
    reason = f"{unfit} GPUs are no level: {message}"
    retire(generation, RetireReason.MEASURED, reason)
    # This is no broken-off attempt, even if the worker was found missing first.
    generation.retired_because, generation.retire_reason = RetireReason.MEASURED, reason[:300]
    generation.save(update_fields=["profile", "retired_because", "retire_reason"])
    record(job, JobEventKind.PROFILED, f"{gpus_text(unfit)}: no level, as {message}.", gpus=unfit)
    gpus = Gpu.objects.measurable(cluster, curve.gpu_kind).count()
    counts = worker_counts_of(job.function_version, curve, job.global_batch_size)
    levels = measurable_levels(job.global_batch_size, gpus, counts)
    larger = [level for level in levels if level > unfit]
    if known:
        state = CurveState.READY
    else:
        state = CurveState.UNKNOWN if larger else CurveState.FAILED
    if _measurements(curve).exclude(state=GenerationState.RETIRED).exists():
        return  # another measurement is under way and decides
    undecided = (CurveState.MEASURING, CurveState.UNKNOWN)
    ScalingCurve.objects.filter(pk=curve.pk, state__in=undecided).update(
        state=state,
        complete=state == CurveState.READY and not larger,
        failure=f"no number of GPUs here holds it: {message}" if state == CurveState.FAILED else "",
        measured_at=timezone.now(),
    )
    Job.objects.filter(curve=curve, awaits_levels=True).update(awaits_levels=False)
    planning_fact_changed(cluster)
    wake("plan", trigger=f"a level of {job.pk} does not fit")


def measuring_ended(curve: ScalingCurve) -> None:
    """End a broken-off measurement: known levels count, and more may be measured later."""
    known = CurveLevel.objects.filter(curve=curve).exists()
    state = CurveState.READY if known else CurveState.UNKNOWN
    ScalingCurve.objects.filter(pk=curve.pk, state=CurveState.MEASURING).update(state=state)


def _measurements(curve: ScalingCurve) -> QuerySet[Generation]:
    measured_for = Q(curve=curve) | Q(curve__isnull=True, job__curve=curve)
    return Generation.objects.filter(measured_for, purpose=Purpose.PROFILING)
