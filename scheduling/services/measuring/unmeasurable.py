"""Moves undecided jobs that will never get a curve to another kind of GPU, or fails them with the reason.

Thousands of jobs may wait for a function. Each pass settles some of them, in a few statements, and wakes the
next pass for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from django.db.models import Q

from cluster.choices import WorkState
from cluster.models import Cluster
from punctual.protocol.limits import MEMORY_EXCEEDED
from scheduling.choices import CurveState
from scheduling.core.question.quantities import duration_text
from scheduling.life_cycle.instructions import Fail
from scheduling.models import Environment, Job, ScalingCurve
from scheduling.models.functions import UNREAD_OF_VERSION
from scheduling.services.generations.lifecycle import fail_all
from scheduling.services.long_work.environments import failure_of
from scheduling.services.measuring.measured_levels import (
    GIVEN_UP,
    MAXIMUM_ATTEMPTS,
    MAXIMUM_TIMEOUTS,
    attempts_of,
    timed_out_curves,
    why_broken_off,
    with_broken_off,
)
from scheduling.services.measuring.profiling import undecided_jobs
from scheduling.services.measuring.unfit_levels import largest_unfit_levels
from scheduling.services.snapshots.kinds import (
    KindRefusal,
    all_reasons,
    ask_all_elsewhere,
    kind_left,
    kinds_to_ask,
)

_WILL_NOT_COME = (WorkState.FAILED, WorkState.CANCELLED)


def unmeasurable_jobs(cluster: Cluster, most: int) -> list[Job]:
    """Return up to ``most`` undecided jobs that will never get a curve, the longest waiting first."""
    failed = Environment.objects.filter(state__in=_WILL_NOT_COME).values("pk")
    hopeless = (
        with_broken_off(undecided_jobs(cluster))
        .filter(
            Q(curve__state=CurveState.FAILED)
            # A job with a curve can be decided even if measuring more levels failed.
            | ~Q(curve__state=CurveState.READY) & (GIVEN_UP | Q(curve__in=timed_out_curves()))
            | Q(function_version__requirements_digest__in=failed)
        )
        .order_by("submitted_at", "id")
    )
    ids = list(hopeless.values_list("pk", flat=True)[:most])
    if not ids:
        return []
    found = Job.objects.filter(pk__in=ids).select_related("curve", "function_version")
    return list(found.defer("verdict", "plan", UNREAD_OF_VERSION).order_by("submitted_at", "id"))


def settle_unmeasurable(cluster: Cluster, most: int) -> int:
    """End up to ``most`` jobs that will never get a curve. Return their number. The caller holds the
    cluster's row."""
    jobs = unmeasurable_jobs(cluster, most)
    if not jobs:
        return 0
    known = _Known(cluster, jobs)
    elsewhere: list[tuple[Job, str, KindRefusal]] = []
    faults: list[tuple[Job, Fail]] = []
    order = cache(lambda service_class: kinds_to_ask(cluster, service_class))
    for job in jobs:
        environment = known.failed_environment(job)
        if environment is not None:
            faults.append((job, failure_of(environment)))
            continue
        reason = known.why(job)
        kind = kind_left(order(job.service_class), job, measured=False)
        if kind is not None and job.curve is not None:
            elsewhere.append((job, kind, KindRefusal(job.curve.gpu_kind, "not_measured", reason)))
            continue
        code = MEMORY_EXCEEDED if known.is_unfit(job.curve) else "function_load_error"
        faults.append((job, Fail(code, all_reasons(job, reason), "")))
    if elsewhere:
        ask_all_elsewhere(elsewhere)
    fail_all(faults, cluster)
    return len(jobs)


class _Known:
    """Facts for the reasons of many jobs, read once."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        self._limit_seconds = cluster.profile_maximum_seconds
        self._attempts = attempts_of(jobs)
        self._causes = why_broken_off(jobs)
        self._timed_out = timed_out_curves()
        curves = {job.curve_id for job in jobs if job.curve_id is not None}
        self._unfit = largest_unfit_levels(curves)
        digests = {job.function_version.requirements_digest for job in jobs} - {""}
        failed = Environment.objects.filter(pk__in=digests, state__in=_WILL_NOT_COME)
        self._failed = {environment.pk: environment for environment in failed}

    def failed_environment(self, job: Job) -> Environment | None:
        """Return the environment of the job's function if it could not be installed."""
        return self._failed.get(job.function_version.requirements_digest)

    def is_unfit(self, curve: ScalingCurve | None) -> bool:
        """Return whether the function is known not to fit on some number of GPUs."""
        return curve is not None and curve.state == CurveState.FAILED and bool(self._unfit.get(curve.pk))

    def why(self, job: Job) -> str:
        """Return a sentence on why there will be no curve."""
        if job.curve is not None and job.curve.state == CurveState.FAILED:
            return f"its function could not be measured: {job.curve.failure}"
        broken_off = self._attempts.get((job.pk, job.curve_id), 0) + self._attempts.get((job.pk, None), 0)
        if job.curve is not None and broken_off >= MAXIMUM_ATTEMPTS:
            cause = self._causes.get(job.pk) or "no cause was reported"
            return f"measuring its function was broken off {MAXIMUM_ATTEMPTS} times, at last because: {cause}"
        limit = duration_text(self._limit_seconds)
        return f"measuring its function took longer than {limit} {MAXIMUM_TIMEOUTS} times, imports included"
