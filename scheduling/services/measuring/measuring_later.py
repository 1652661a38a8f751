"""Measures missing levels of declined jobs' functions on idle GPUs, so that the next submission gets the true
answer.

A decline is final and stays as it is. Levels that were missing because GPUs were not free in time are
measured for the next submission of the function, or for another deadline: for a day, a few times, within the
project's quota.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice

from django.db.models import F, QuerySet
from django.db.models.expressions import RawSQL

from cluster.choices import WorkState
from cluster.models import Cluster, Gpu
from scheduling.choices import CurveState, GenerationState, JobState, Purpose
from scheduling.models import Environment, Generation, Job, ScalingCurve
from scheduling.models.functions import UNREAD_OF_VERSION
from scheduling.services.measuring.another_chance import CURABLE
from scheduling.services.measuring.measured_levels import (
    MAXIMUM_ATTEMPTS,
    known_up_to,
    more_can_be_measured,
    top_level,
)
from scheduling.services.measuring.profiling import MOST_WAITING_LOOKED_AT
from scheduling.services.measuring.room_to_measure import Measurement, RoomToMeasure
from scheduling.services.rows.borrowed import curve_on
from scheduling.services.snapshots.kinds import refusals_of
from scheduling.services.verdicts.quotas import profiling_refusal
from scheduling.stored_verdict import AnswerCode, StoredVerdict

#: Time after a decline during which its function is measured.
REMEMBERED_FOR = timedelta(days=1)
#: Latest declines examined; those of a burst share their functions.
MOST_DECLINES = 100


def measurement_after_decline(room: RoomToMeasure) -> Measurement | None:
    """Return a measurement of more levels of a function that was declined for lack of them. None while
    anything is being measured. Only called while no job is undecided."""
    cluster, now = room.cluster, room.now
    if not declined_since(cluster.pk, now - REMEMBERED_FOR).exists():
        return None
    measured_now = Generation.objects.filter(job__cluster=cluster, purpose=Purpose.PROFILING)
    if measured_now.exclude(state=GenerationState.RETIRED).exists():
        return None
    for job, curve in islice(_short_of_levels(cluster, now), MOST_WAITING_LOOKED_AT):
        found = room.block_for(job, above=top_level(curve), curve=curve, idle_gpus_alone=True)
        if found is not None:
            return found
    return None


def declined_since(cluster_id: int, since: datetime | RawSQL) -> QuerySet[Job]:
    """Return jobs declined after that time, which may be measured for whoever asks again."""
    return Job.objects.filter(
        cluster=cluster_id,
        state=JobState.DECLINED,
        finished_at__gt=since,
        project__archived_at__isnull=True,
    )


def _short_of_levels(cluster: Cluster, now: datetime) -> Iterator[tuple[Job, ScalingCurve]]:
    """Yield declined jobs, the latest first, with a curve that lacked levels; each curve once."""
    gpus: dict[str, int] = {}
    seen: set[int] = set()
    declined = declined_since(cluster.pk, now - REMEMBERED_FOR).defer(UNREAD_OF_VERSION)
    declined = declined.select_related("curve", "function_version", "project")
    for job in declined.order_by("-finished_at", "id")[:MOST_DECLINES]:
        for curve in _curable_curves(job):
            if curve.pk in seen:
                continue
            seen.add(curve.pk)
            if curve.gpu_kind not in gpus:
                gpus[curve.gpu_kind] = Gpu.objects.measurable(cluster, curve.gpu_kind).count()
            if known_up_to(curve) * 2 <= gpus[curve.gpu_kind] and _may_be_measured(job, curve, now):
                yield job, curve


def _curable_curves(job: Job) -> Iterator[ScalingCurve]:
    """Yield the job's curves, by kind of GPU, on which more levels could have cured the refusal."""
    codes = {kind: said.code for kind, said in refusals_of(job).items()}
    if job.curve is not None:
        codes[job.curve.gpu_kind] = StoredVerdict.from_json(job.verdict).reason_code
    for kind, code in codes.items():
        curve = curve_on(job, kind)
        if curve is None or curve.complete:
            continue
        curable = {
            CurveState.READY: code in CURABLE,
            CurveState.UNKNOWN: code == AnswerCode.NOT_PROFILED_IN_TIME,
        }
        if curable.get(CurveState(curve.state), False):
            yield curve


def _may_be_measured(job: Job, curve: ScalingCurve, now: datetime) -> bool:
    """Return whether the quota allows a measurement, its requirements are installed, and it was not tried
    too often."""
    tries = Generation.objects.filter(
        curve=curve,
        purpose=Purpose.PROFILING,
        job__state=JobState.DECLINED,
        created_at__gt=now - REMEMBERED_FOR,
        created_at__gte=F("job__finished_at"),
    )
    digest = job.function_version.requirements_digest
    # Requirements without a row are installed with the measurement.
    missing = Environment.objects.filter(pk=digest).exclude(state=WorkState.DONE)
    return (
        not missing.exists()
        and tries.count() < MAXIMUM_ATTEMPTS
        and more_can_be_measured(job, curve)
        and profiling_refusal(job.project, now) is None
    )
