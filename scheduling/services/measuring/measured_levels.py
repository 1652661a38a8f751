"""Measured levels of curves, and how often their measurements were broken off."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from django.db.models import Count, F, Max, Q, QuerySet
from django.utils import timezone

from scheduling.choices import GenerationState, Purpose, RetireReason
from scheduling.life_cycle.steps import WORKER_GONE
from scheduling.models import CurveLevel, Generation, Job, ScalingCurve
from scheduling.services.measuring.unfit_levels import largest_unfit_level

#: Broken-off measurements after which a job is given up.
MAXIMUM_ATTEMPTS = 4
#: Timed-out measurements of a curve after which its jobs are given up, and for how long they count.
MAXIMUM_TIMEOUTS = 2
TIMEOUTS_COUNT_FOR = timedelta(hours=1)
#: For jobs: broken-off measurements on the kind of GPU that is tried for the job now.
_BROKEN_OFF = (
    Q(generations__purpose=Purpose.PROFILING, generations__state=GenerationState.RETIRED)
    & ~Q(generations__retired_because=RetireReason.MEASURED)
    & (Q(generations__curve=F("curve")) | Q(generations__curve__isnull=True))
)
#: For jobs `with_broken_off`: the measurement is given up.
GIVEN_UP = Q(broken_off__gte=MAXIMUM_ATTEMPTS)


def with_broken_off(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Annotate jobs with ``broken_off``: the number of broken-off measurements on their present kind of
    GPU."""
    return jobs.annotate(broken_off=Count("generations", filter=_BROKEN_OFF))


def timed_out_curves() -> set[int]:
    """Return curves whose measurements timed out too often, over all jobs."""
    measurements = Generation.objects.filter(
        curve__isnull=False,
        purpose=Purpose.PROFILING,
        retired_because=RetireReason.MEASURING_TIMEOUT,
        retired_at__gt=timezone.now() - TIMEOUTS_COUNT_FOR,
    )
    times = measurements.values("curve_id").annotate(times=Count("pk")).filter(times__gte=MAXIMUM_TIMEOUTS)
    return set(times.values_list("curve_id", flat=True))


def top_level(curve: ScalingCurve) -> int:
    """Return the largest measured level; 0 without any."""
    return max(curve.levels.values_list("gpus", flat=True), default=0)


def known_up_to(curve: ScalingCurve) -> int:
    """Return the largest level whose speed is known, or that is known not to fit."""
    return max(top_level(curve), largest_unfit_level(curve))


def fastest_known(curve: ScalingCurve) -> float | None:
    """Return the iterations a second that more GPUs have to exceed. Known levels are not measured again,
    since slow iterations would leave no time for the others."""
    return curve.levels.aggregate(fastest=Max("iterations_per_second"))["fastest"]


def top_levels(curve_ids: Collection[int]) -> dict[int, int]:
    """Return `top_level` of many curves in one query, by primary key; curves without levels are left out."""
    levels = CurveLevel.objects.filter(curve__in=curve_ids).order_by()
    return dict(levels.values_list("curve").annotate(top=Max("gpus")))


def more_can_be_measured(job: Job, curve: ScalingCurve) -> bool:
    """Return whether more levels may be measured: attempts have not been broken off too often."""
    return attempts_on(job, curve) < MAXIMUM_ATTEMPTS and curve.pk not in timed_out_curves()


def attempts_on(job: Job, curve: ScalingCurve) -> int:
    """Return the number of broken-off measurements of the curve for this job."""
    broken = job.generations.filter(
        Q(curve=curve) | Q(curve__isnull=True), purpose=Purpose.PROFILING, state=GenerationState.RETIRED
    )
    return broken.exclude(retired_because=RetireReason.MEASURED).count()


def why_broken_off(jobs: Sequence[Job]) -> dict[str, str]:
    """Return why the last measurement of each job was broken off, by job id; or an earlier one, if the last
    worker's end is not explained yet."""
    broken = Generation.objects.filter(
        job__in=[job.pk for job in jobs], purpose=Purpose.PROFILING, state=GenerationState.RETIRED
    ).exclude(retired_because=RetireReason.MEASURED)
    reasons = broken.order_by("number").values_list("job", "retire_reason")
    return dict(reasons) | dict(reasons.exclude(retire_reason=WORKER_GONE))


def attempts_of(jobs: Sequence[Job]) -> dict[tuple[str, int | None], int]:
    """Return the number of broken-off measurements, by job id and curve (None: made before curves were
    stored)."""
    broken = Generation.objects.filter(
        job__in=[job.pk for job in jobs], purpose=Purpose.PROFILING, state=GenerationState.RETIRED
    ).exclude(retired_because=RetireReason.MEASURED)
    counts = broken.order_by().values_list("job", "curve").annotate(count=Count("pk"))
    return {(job_id, curve_id): count for job_id, curve_id, count in counts}
