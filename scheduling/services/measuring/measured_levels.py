"""What is known of curves: the levels that were measured, and how often measuring them was broken off."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from django.db.models import Count, F, Max, Q, QuerySet
from django.utils import timezone

from scheduling.choices import GenerationState, Purpose, RetireReason
from scheduling.models import CurveLevel, Generation, Job, ScalingCurve
from scheduling.services.measuring.unfit_levels import largest_unfit_level

#: How often a measurement may be broken off before the job is given up.
MAXIMUM_ATTEMPTS = 4
#: How often the measurements of a curve may take too long before its jobs are given up, and for how long that
#: is remembered.
MAXIMUM_TIMEOUTS = 2
TIMEOUTS_COUNT_FOR = timedelta(hours=1)
#: Of jobs: measurements that were broken off on the kind of GPU that the job is asked for on now.
_BROKEN_OFF = (
    Q(generations__purpose=Purpose.PROFILING, generations__state=GenerationState.RETIRED)
    & ~Q(generations__retired_because=RetireReason.MEASURED)
    & (Q(generations__curve=F("curve")) | Q(generations__curve__isnull=True))
)
#: Of jobs `with_broken_off`: whose measurement is given up.
GIVEN_UP = Q(broken_off__gte=MAXIMUM_ATTEMPTS)


def with_broken_off(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """The jobs with ``broken_off``: how many measurements were broken off where they are asked for now."""
    return jobs.annotate(broken_off=Count("generations", filter=_BROKEN_OFF))


def timed_out_curves() -> set[int]:
    """Curves whose measurements, for whichever job, were ended too often because they took too long."""
    measurements = Generation.objects.filter(
        curve__isnull=False,
        purpose=Purpose.PROFILING,
        retired_because=RetireReason.MEASURING_TIMEOUT,
        retired_at__gt=timezone.now() - TIMEOUTS_COUNT_FOR,
    )
    times = measurements.values("curve_id").annotate(times=Count("pk")).filter(times__gte=MAXIMUM_TIMEOUTS)
    return set(times.values_list("curve_id", flat=True))


def top_level(curve: ScalingCurve) -> int:
    """The largest level that was measured; 0 where none was."""
    return max(curve.levels.values_list("gpus", flat=True), default=0)


def known_up_to(curve: ScalingCurve) -> int:
    """The largest level of which anything is known: its speed, or that it does not fit."""
    return max(top_level(curve), largest_unfit_level(curve))


def fastest_known(curve: ScalingCurve) -> float | None:
    """Iterations a second that more GPUs have to exceed: they are not measured again, since slow iterations
    would leave no time for what is to be measured."""
    return curve.levels.aggregate(fastest=Max("iterations_per_second"))["fastest"]


def top_levels(curve_ids: Collection[int]) -> dict[int, int]:
    """`top_level` of many curves in one query, by the curve's key; those without levels are left out."""
    levels = CurveLevel.objects.filter(curve__in=curve_ids).order_by()
    return dict(levels.values_list("curve").annotate(top=Max("gpus")))


def more_can_be_measured(job: Job, curve: ScalingCurve) -> bool:
    """Whether nothing but time speaks against measuring more levels: not how often that was broken off
    already."""
    return attempts_on(job, curve) < MAXIMUM_ATTEMPTS and curve.pk not in timed_out_curves()


def attempts_on(job: Job, curve: ScalingCurve) -> int:
    """Measurements of the curve for this job that were broken off."""
    broken = job.generations.filter(
        Q(curve=curve) | Q(curve__isnull=True), purpose=Purpose.PROFILING, state=GenerationState.RETIRED
    )
    return broken.exclude(retired_because=RetireReason.MEASURED).count()


def why_broken_off(jobs: Sequence[Job]) -> dict[str, str]:
    """Why the last measurement for each of these jobs was broken off, by job id."""
    broken = Generation.objects.filter(
        job__in=[job.pk for job in jobs], purpose=Purpose.PROFILING, state=GenerationState.RETIRED
    ).exclude(retired_because=RetireReason.MEASURED)
    return dict(broken.order_by("number").values_list("job", "retire_reason"))


def attempts_of(jobs: Sequence[Job]) -> dict[tuple[str, int | None], int]:
    """Measurements that were broken off, by job id and curve (None: of before curves were noted)."""
    broken = Generation.objects.filter(
        job__in=[job.pk for job in jobs], purpose=Purpose.PROFILING, state=GenerationState.RETIRED
    ).exclude(retired_because=RetireReason.MEASURED)
    counts = broken.order_by().values_list("job", "curve").annotate(count=Count("pk"))
    return {(job_id, curve_id): count for job_id, curve_id, count in counts}
