"""Moves jobs that began without a communication plan to one: their curve under plans is measured on idle
GPUs, and if it is faster they continue under it (decision 0021).

This concerns only jobs without a promise. A promise was computed from the job's present curve; another curve
would need a new promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Q, QuerySet

from cluster.models import Cluster
from scheduling.choices import (
    PLANNED_STATES,
    CurveState,
    GenerationState,
    Goal,
    JobEventKind,
    JobState,
    Lossy,
    Purpose,
)
from scheduling.core.runtime_plans.expert_families import UNPLANNED
from scheduling.curve_keys import function_key_on, keys_without_plan
from scheduling.models import CurveLevel, Generation, GradientPlan, Job, ScalingCurve
from scheduling.models.functions import NOT_VOID, UNREAD_OF_VERSION
from scheduling.services.generations.following_plans import FollowedPlans
from scheduling.services.generations.plan_watch import TOLERANCE
from scheduling.services.generations.renewing import may_be_renewed, renew, renew_locked
from scheduling.services.gradients.families import curve_of_family, family_of_newcomer
from scheduling.services.gradients.gradient_profiles import WORTH_MEASURING
from scheduling.services.measuring.measured_levels import MAXIMUM_ATTEMPTS, attempts_on, top_level
from scheduling.services.rows.records import lock_cluster, planning_fact_changed, record
from scheduling.services.rows.wakeups import wake
from scheduling.services.verdicts.quotas import profiling_refusal

if TYPE_CHECKING:
    from scheduling.services.measuring.room_to_measure import Measurement, RoomToMeasure

#: Jobs examined whose functions have winning plans, in order of submission.
MOST_LOOKED_AT = 20
#: A change must save this multiple of its cost.
GAIN_OVER_PAUSE = 3.0


def measurement_of_better_plan(room: RoomToMeasure) -> Measurement | None:
    """Return a measurement of a job's curve under plans, on idle GPUs; None if no plan is predicted to win
    or there is no room."""
    if not winning_plans().exists():  # as in most passes
        return None
    if _measurements().filter(job__cluster=room.cluster).exists():
        return None
    for job, family in _without_plan(room.cluster):
        curve = curve_of_family(job, family)
        if curve.state == CurveState.READY and (curve.complete or _covers(curve, job)):
            continue
        if curve.state not in (CurveState.READY, CurveState.UNKNOWN, CurveState.MEASURING):
            continue
        if attempts_on(job, curve) >= MAXIMUM_ATTEMPTS or profiling_refusal(job.project, room.now):
            continue
        found = room.block_for(job, above=top_level(curve), curve=curve, idle_gpus_alone=True)
        if found is not None:
            return found
    return None


def take_up_better_plans() -> int:
    """Give jobs the curve of their plan family if it was measured and is faster. Those that train follow
    its plan at once. Return the number of jobs."""
    if not winning_plans().exists():
        return 0
    taken = 0
    for cluster in Cluster.objects.all():
        for job, family in list(_without_plan(cluster)):
            assert job.curve is not None
            curve = curve_of_family(job, family)
            if curve.state == CurveState.READY and _is_faster(curve, job.curve):
                taken += _take_up(job, curve)
    return taken


def follow_newer_plans() -> int:
    """Let unpromised jobs that train under a plan follow its newer version, made because links or
    gradients changed by more than a fifth. Return the number of jobs."""
    renewed = 0
    live = Generation.objects.filter(
        purpose=Purpose.TRAINING,
        state=GenerationState.LIVE,
        goal=Goal.TRAIN,
        communication__has_key="plan",
        job__state=JobState.RUNNING,
        job__promised=False,
    )
    followed = list(live.values_list("pk", "communication__plan", "communication__made_at"))
    plans = GradientPlan.objects.filter(pk__in={plan for _, plan, _ in followed})
    made = {pk: at.isoformat() for pk, at in plans.values_list("pk", "made_at")}
    replaced = [pk for pk, plan, at in followed if made.get(plan, at) > at]
    outdated = live.filter(pk__in=replaced).select_related("job__curve", "job__function_version")
    for generation in outdated.defer(f"job__{UNREAD_OF_VERSION}").order_by("pk"):
        plan = plans.filter(pk=generation.communication["plan"]).first()
        if plan is not None and _newer_pays(generation, plan):
            renewed += renew(
                generation,
                reason="it follows a newer communication plan",
                event="plan_renewed",
                sentence="Its communication plan was made anew, as what it was made for has moved.",
            )
    return renewed


def _newer_pays(generation: Generation, plan: GradientPlan) -> bool:
    """Return whether the newer plan changes what ranks do, and saves several times the pause of the
    change."""
    members = generation.assignments.filter(rank__lt=generation.world_size).select_related("gpu")
    gpus = [one.gpu for one in members.order_by("rank")]
    window = generation.communication_window
    if not gpus or not window or not plan.carried_out:
        return False
    job = generation.job
    followed = FollowedPlans([(job, gpus[0].kind)])
    newer = followed.runtime_plan(job, [gpu.server_id for gpu in gpus])
    level = CurveLevel.objects.filter(curve=job.curve, gpus=generation.world_size).first()
    if level is None or newer.to_message()["synchronisers"] == generation.runtime_plan["synchronisers"]:
        return False
    predicted = plan.chosen["predicted"]["iteration_seconds"]
    saved = (job.max_iterations - job.iterations_done) * (median(window["iteration_seconds"]) - predicted)
    return saved > GAIN_OVER_PAUSE * level.pause_seconds


def winning_plans() -> QuerySet[GradientPlan]:
    """Return communication plans that are predicted to be worth a measurement."""
    plans = GradientPlan.objects.filter(given_up="", speedup__gte=WORTH_MEASURING)
    return plans.exclude(planner="dense")


def _measurements() -> QuerySet[Generation]:
    """Return measurements under way."""
    return Generation.objects.filter(purpose=Purpose.PROFILING).exclude(state=GenerationState.RETIRED)


def _without_plan(cluster: Cluster) -> Iterator[tuple[Job, str]]:
    """Yield unpromised jobs whose measured curve has no plan, with the plan family that is predicted to
    win."""
    functions = set(winning_plans().values_list("profile__key", flat=True))
    jobs = Job.objects.filter(
        cluster=cluster,
        curve__key__in=[key for function in functions for key in keys_without_plan(function)],
        state__in=PLANNED_STATES,
        promised=False,
        paused_by_owner=False,
        curve__plan_family__in=UNPLANNED,
        curve__state=CurveState.READY,
    ).select_related("curve", "function_version", "project")
    jobs = jobs.exclude(generations__in=_measurements()).defer(UNREAD_OF_VERSION)
    for job in jobs.order_by("submitted_at", "id")[:MOST_LOOKED_AT]:
        assert job.curve is not None
        function = function_key_on(job, job.curve.gpu_kind)
        unplanned = job.curve.plan_family
        family = family_of_newcomer(function, unplanned, lossy=job.lossy == Lossy.ALLOWED, codecs=job.codecs)
        if family != unplanned:
            yield job, family


def _covers(curve: ScalingCurve, job: Job) -> bool:
    """Return whether the curve reaches the largest level of the job's curve."""
    assert job.curve is not None
    return top_level(curve) >= top_level(job.curve)


def _rates(curve: ScalingCurve) -> dict[int, float]:
    """Return the iterations a second of levels that are not void."""
    return dict(curve.levels.filter(NOT_VOID).values_list("gpus", "iterations_per_second"))


def _is_faster(curve: ScalingCurve, known: ScalingCurve) -> bool:
    """Return whether the curve has every level of the known one, none slower and one faster. False if a
    known level is void."""
    planned, dense = _rates(curve), _rates(known)
    if not dense or len(dense) < known.levels.count() or not dense.keys() <= planned.keys():
        return False
    slower = any(planned[gpus] < (1.0 - TOLERANCE) * rate for gpus, rate in dense.items())
    return not slower and any(planned[gpus] >= WORTH_MEASURING * rate for gpus, rate in dense.items())


def _take_up(job: Job, curve: ScalingCurve) -> int:
    with transaction.atomic():
        cluster = lock_cluster(job.cluster_id)
        current = Job.objects.select_for_update(of=("self",)).get(pk=job.pk)
        current = Job.objects.select_related("curve", "function_version", "checkpoint").get(pk=job.pk)
        if current.promised or current.finished() or current.curve_id != job.curve_id:
            return 0
        known = current.curve
        assert known is not None
        current.curve = curve
        current.save(update_fields=["curve"])
        record(
            current,
            JobEventKind.PLAN_TAKEN_UP,
            f"Plans of its gradients ({curve.plan_family}) were measured and are faster; the job uses "
            "them from its next change of GPUs.",
        )
        planning_fact_changed(cluster)
        wake("plan", trigger=f"{job.pk} takes a communication plan up")
        live = current.generations.filter(purpose=Purpose.TRAINING, state=GenerationState.LIVE).first()
        if live is not None and may_be_renewed(current, live) and _pays(current, live, known):
            renew_locked(
                current,
                live,
                cluster,
                reason="it takes a communication plan up",
                event="plan_taken_up",
                sentence="Trains on under a communication plan.",
            )
        return 1


def _pays(job: Job, live: Generation, known: ScalingCurve) -> bool:
    """Return whether a plan for the job's present GPUs saves several times the pause of the change."""
    assert job.curve is not None
    gpus = list(live.assignments.filter(rank__lt=live.world_size).select_related("gpu").order_by("rank"))
    if not gpus:
        return False
    followed = FollowedPlans([(job, gpus[0].gpu.kind)])
    levels = CurveLevel.objects.filter(Q(curve=job.curve) | Q(curve=known), gpus=live.world_size)
    by_curve = {level.curve_id: level for level in levels}
    if len(by_curve) < 2 or followed.plan(job, [one.gpu.server_id for one in gpus]) is None:
        return False
    planned, dense = by_curve[job.curve.pk], by_curve[known.pk]
    left = job.max_iterations - job.iterations_done
    saved = left / dense.iterations_per_second - left / planned.iterations_per_second
    return saved > GAIN_OVER_PAUSE * max(planned.pause_seconds, dense.pause_seconds)
