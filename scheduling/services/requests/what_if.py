"""Questions without consequences: the verdict that a submission would get. Also changes the deadline of a
job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf

import numpy as np
from django.db import transaction
from django.utils import timezone

from cluster.models import Cluster
from projects.errors import Conflict, InvalidRequest, Unavailable
from projects.models import Project, User
from scheduling.choices import UNDECIDED_STATES, CurveState, JobEventKind, Lossy, PromiseOutcome, ServiceClass
from scheduling.core.question import snapshot as core
from scheduling.core.question.decision import ReasonCode
from scheduling.core.question.validation import Unplannable, check_job
from scheduling.core.runtime_plans.plan import family_name
from scheduling.curve_keys import function_key_on
from scheduling.models import CurveLevel, Job, ScalingCurve
from scheduling.moments import rfc3339
from scheduling.services.generations.failure_charges import REPORTING_SECONDS, CountsOn, counts_on_sentence
from scheduling.services.gradients.gradient_plans import server_size
from scheduling.services.gradients.other_links import levels_on
from scheduling.services.memory.disk_shares import levels_with_room
from scheduling.services.memory.expert_levels import why_no_level
from scheduling.services.memory.tier_options import tier_options
from scheduling.services.requests.deciding_again import decided_again, store_plans
from scheduling.services.requests.jobs import JobRequest, curve_for, default_cluster
from scheduling.services.rows.plan_json import plan_from_json
from scheduling.services.rows.records import lock_cluster, planning_fact_changed, read_cluster, record
from scheduling.services.rows.slots import frozen_until
from scheduling.services.rows.wakeups import wake
from scheduling.services.snapshots.isolating import FAILURES, answered_now, words_on
from scheduling.services.snapshots.jobs_of_pool import core_curve
from scheduling.services.snapshots.kinds import kinds_to_ask, reasons_in_turn
from scheduling.services.snapshots.planner_lease import Moved, waited_for
from scheduling.services.snapshots.snapshots import Pool, cluster_policy, pool_snapshot
from scheduling.services.verdicts.offers import seconds_from_acceptance, snapshot_after, within_horizon
from scheduling.services.verdicts.quotas import PromiseQuotas, refused_by_quota, without_copies
from scheduling.stored_verdict import (
    ADMITTED,
    AnswerCode,
    StoredVerdict,
    answered,
    declined,
    pending,
    promised_on,
)

_TRIAL = "what-if"


def job_what_if(
    *, project: Project, request: JobRequest, link_bytes_per_second: float | None = None
) -> StoredVerdict:
    """Return the verdict that a submission would get now. Store no job and hold no offer.

    ``link_bytes_per_second``: assumed bandwidth between servers. Then the function's speed is predicted, and
    the answer marks it as a prediction.
    """
    cluster = default_cluster()
    kinds = kinds_to_ask(cluster, request.service_class)
    if not kinds:
        raise Unavailable("No server with GPUs is connected; try again later.")
    refusals: list[tuple[str, StoredVerdict]] = []
    unknown = []
    for kind in kinds:
        curve = curve_for(request, kind)
        if curve.state != CurveState.READY:
            unfit = why_no_level(cluster, request.function_version, curve, request.global_batch_size)
            if unfit is None:
                unknown.append(kind)
            else:
                refused = declined(AnswerCode.MODEL_DOES_NOT_FIT, unfit)
                told = tier_options(cluster, curve, (), request.global_batch_size)
                refusals.append((kind, replace(refused, tiers=told)))
            continue
        found = list(curve.levels.all())
        if link_bytes_per_second is not None:
            found = _on_link(curve, request, link_bytes_per_second)
        if link_bytes_per_second is not None and not found:
            unknown.append(kind)
            continue
        answer = _asked_on(cluster, curve, found, request, project)
        answer = replace(answer, tiers=tier_options(cluster, curve, found, request.global_batch_size))
        if link_bytes_per_second is not None:
            answer = replace(answer, reason=f"{answer.reason.removesuffix('.')}. {_PREDICTED}")
        if answer.decision == ADMITTED or answer.reason_code == AnswerCode.QUOTA:
            return answer
        refusals.append((kind, answer))
    if unknown:
        where = "" if not refusals else f" on {', '.join(unknown)} GPUs, and no others can take it now"
        text = f"The function has not been measured yet{where}; submitting it measures it first."
        if link_bytes_per_second is not None:
            text = f"The function's gradients have not been measured yet{where}; running it measures them."
        return pending(AnswerCode.NEEDS_PROFILING, text, needs_profiling=True)
    return _refused_by_all(refusals)


_PREDICTED = (
    "The speed with these links was predicted from measured gradients, and not measured: nothing is promised "
    "by it."
)


def _on_link(curve: ScalingCurve, request: JobRequest, bytes_per_second: float) -> list[CurveLevel]:
    """Return the curve's levels under the best plan that the job allows on such a link."""
    function = function_key_on(request, curve.gpu_kind)
    allowed = family_name(lossy=request.lossy == Lossy.ALLOWED, codecs=request.codecs)
    return levels_on(curve, function, allowed, server_size(curve.gpu_kind), bytes_per_second)


def _asked_on(
    cluster: Cluster,
    curve: ScalingCurve,
    measured: Sequence[CurveLevel],
    request: JobRequest,
    project: Project,
) -> StoredVerdict:
    """Return the verdict on one kind of GPU, with these levels of the curve."""
    now = timezone.now()
    slot_at = frozen_until(cluster, now)
    pool = pool_snapshot(cluster, curve.gpu_kind, now, reallocate_at=slot_at)
    levels = core_curve(
        levels_with_room(measured, curve, cluster),
        batch=request.global_batch_size,
        total=sum(server.gpus for server in pool.snapshot.servers if not server.on_loan),
        margin=cluster.promise_margin,
    )
    within = (request.deadline_at - now).total_seconds() if request.deadline_at else inf
    counts_on = pool.charges.asked_for(levels, curve, within_seconds=within, protection=request.protection)
    trial = core.JobSnapshot(
        id=_TRIAL,
        service_class=core.ServiceClass(request.service_class),
        submitted_at=now.timestamp(),
        deadline_at=request.deadline_at.timestamp() if request.deadline_at else core.NO_DEADLINE,
        remaining_iterations=float(request.max_iterations),
        curve=pool.charges.promised(levels or _no_levels(), counts_on),
        newcomer=True,
        finishing_seconds=curve.finishing_seconds + REPORTING_SECONDS,
        failure_slack_seconds=counts_on.slack_seconds,
    )
    return _trial_verdict(cluster, pool, trial, request.deadline_at, counts_on, project)


def _refused_by_all(refusals: list[tuple[str, StoredVerdict]]) -> StoredVerdict:
    """Return the last kind's refusal with those of the others, and the earliest deadline that any of them
    offers."""
    answer = refusals[-1][1]
    if len(refusals) == 1:
        return answer
    offers = [refusal.offer for _, refusal in refusals if refusal.offer]
    return replace(
        answer,
        reason=reasons_in_turn([(kind, refusal.reason) for kind, refusal in refusals]),
        offer=min(offers, key=lambda offer: datetime.fromisoformat(offer["deadline_at"]), default=None),
    )


def _no_levels() -> core.ScalingCurve:
    return core.ScalingCurve(np.array([], np.int64), np.array([], np.float64), np.array([], np.float64))


def _trial_verdict(
    cluster: Cluster,
    pool: Pool,
    trial: core.JobSnapshot,
    deadline_at: datetime | None,
    counts_on: CountsOn,
    project: Project,
) -> StoredVerdict:
    try:
        check_job(trial)
    except Unplannable as fault:
        return declined(AnswerCode.CANNOT_BE_PLANNED, f"It cannot be planned: {fault.reason}.")
    policy = cluster_policy(cluster)
    settled = tuple(job for job in pool.snapshot.jobs if not job.newcomer)
    snapshot = dataclasses.replace(pool.snapshot, jobs=(*settled, trial))
    try:
        decision = policy.admit(snapshot)
    except FAILURES as error:
        # Find out whether this job causes the failure, or whether there is no answer without it either.
        others = dataclasses.replace(pool, snapshot=dataclasses.replace(snapshot, jobs=settled))
        answered_now(others, lambda one: policy.admit(one.snapshot))
        text = f"It cannot be planned: planning failed with it ({words_on(error)})."
        return declined(AnswerCode.CANNOT_BE_PLANNED, text)
    verdict = next(verdict for verdict in decision.verdicts if verdict.job_id == trial.id)
    plan = decision.plans.get(trial.id)
    answer = answered(verdict, plan, deadline_at, counts_on=counts_on.sentence())
    quotas = PromiseQuotas(timezone.now())
    if counts_on.shortfall and verdict.admitted:
        return without_copies(answer, counts_on.shortfall, trial.service_class, promised=verdict.promised)
    if verdict.promised and plan is not None and (over := quotas.refusal(project, plan)) is not None:
        answer = refused_by_quota(answer, over, trial.service_class)
    if not verdict.admitted and not counts_on.shortfall:
        # No capacity is held, so the work would begin at once.
        after = snapshot_after(snapshot, decision)
        after = dataclasses.replace(
            after, settings=dataclasses.replace(after.settings, offer_hold_seconds=0.0)
        )
        asked = dataclasses.replace(pool, snapshot=after)
        found = answered_now(asked, lambda one: policy.find_offer(one.snapshot, trial))
        if (
            found is not None
            and within_horizon(found.deadline_at, snapshot.now)
            and quotas.refusal(project, found.plan) is None
        ):
            seconds = seconds_from_acceptance(found.deadline_at, snapshot.now, cluster.slot_seconds)
            at_once = {
                "deadline_at": rfc3339(found.deadline_at), "valid_until": None, "deadline_seconds": seconds
            }  # fmt: skip
            answer = replace(answer, offer=at_once)
    return answer


def job_change_deadline(
    *, job: Job, actor: User, deadline_at: datetime | None, service_class: str | None = None
) -> tuple[Job, StoredVerdict, bool]:
    """Change a job's deadline or class. A refused tightening keeps the old promise; loosening never revokes
    it.

    Return the job, the verdict, and whether anything changed.

    Raises:
        Conflict: the job is finished, undecided or paused.
        InvalidRequest: class and deadline do not fit together.
    """
    wanted = service_class or job.service_class
    if wanted == ServiceClass.BEST_EFFORT and deadline_at is not None:
        raise InvalidRequest(
            "A best-effort job has no deadline.",
            errors={"deadline_at": ["leave it out, or ask for class soft"]},
        )
    if wanted != ServiceClass.BEST_EFFORT and deadline_at is None:
        raise InvalidRequest(
            f"Class {wanted} needs a deadline.",
            errors={"deadline_at": ["give deadline_at or deadline_seconds"]},
        )
    return waited_for(job.cluster_id, lambda _: _change_once(job.pk, actor, deadline_at, wanted))


def _change_once(
    job_id: str, actor: User, deadline_at: datetime | None, wanted: str
) -> tuple[Job, StoredVerdict, bool]:
    job = Job.objects.select_related("curve", "cluster", "project").get(pk=job_id)
    if job.finished():
        raise Conflict(f"Job {job.pk} is {job.state} already.")
    if job.state in UNDECIDED_STATES:
        raise Conflict(f"Job {job.pk} has no verdict yet; wait for it, or cancel and submit again.")
    if job.paused_by_owner:
        raise Conflict(f"Job {job.pk} is paused; resume it first.")
    cluster = read_cluster(job.cluster_id)
    change = _change_to(cluster, job, deadline_at, wanted)
    if wanted == ServiceClass.SLO and not change.promised:
        return job, change.answer, False
    return _commit_change(cluster, job, actor, change), change.answer, True


@dataclass(frozen=True)
class _Change:
    """Another deadline or class for a job: the answer, whether it is promised, and the plans that then
    keep all promises."""

    deadline_at: datetime | None
    service_class: str
    answer: StoredVerdict
    promised: bool
    plans: Mapping[str, core.StoredPlan]


def _change_to(cluster: Cluster, job: Job, deadline_at: datetime | None, wanted: str) -> _Change:
    """Return the result of a change. The project's quota limits promises."""
    loosened = (
        job.promised
        and wanted == job.service_class
        and deadline_at is not None
        and job.deadline_at is not None
        and deadline_at >= job.deadline_at
    )
    if loosened and deadline_at is not None:
        text, kept = "A later deadline keeps the promise.", plan_from_json(job.plan)
        on = counts_on_sentence(job)
        answer = promised_on(kept, deadline_at, ReasonCode.FITS, text, counts_on=on)
        return _Change(deadline_at, wanted, answer, True, {})
    verdict, plans = decided_again(cluster, job, deadline_at, wanted, answered_now)
    if verdict is None:
        answer = StoredVerdict(ADMITTED, ReasonCode.BEST_EFFORT, "It has no deadline from now on.")
        return _Change(deadline_at, wanted, answer, False, {})
    plan = plans.get(job.pk)
    answer = answered(verdict, plan, deadline_at, counts_on=counts_on_sentence(job))
    if not verdict.promised or plan is None:
        return _Change(deadline_at, wanted, answer, False, {})
    over = PromiseQuotas(timezone.now(), in_place_of=job.pk).refusal(job.project, plan)
    if over is not None:
        return _Change(deadline_at, wanted, refused_by_quota(answer, over, wanted), False, {})
    return _Change(deadline_at, wanted, answer, True, plans)


def _commit_change(cluster: Cluster, job: Job, actor: User, change: _Change) -> Job:
    deadline_at, wanted, promised = change.deadline_at, change.service_class, change.promised
    with transaction.atomic():
        current = lock_cluster(cluster.pk)
        if current.planning_version != cluster.planning_version:
            raise Moved
        job = Job.objects.select_for_update(of=("self",)).get(pk=job.pk)
        before = job.deadline_at
        job.service_class = wanted
        job.deadline_at = deadline_at
        job.late = job.late and deadline_at is not None and deadline_at <= timezone.now()
        job.at_risk = job.at_risk and not promised
        if promised and not job.promised:
            job.promise_outcome, job.void_reason = PromiseOutcome.OPEN, ""
        elif job.promised and not promised:
            # Its owner gave the promise up by asking for a class without one.
            job.promise_outcome = PromiseOutcome.NONE
        job.promised = promised
        job.promise_asked_again = False
        job.verdict = change.answer.as_json()
        job.save()
        store_plans(change.plans)
        record(
            job,
            JobEventKind.DEADLINE_CHANGED,
            f"{actor.username} changed the deadline from {_text(before)} to {_text(deadline_at)} (class "
            f"{wanted}).",
            actor=actor.username,
        )
        planning_fact_changed(cluster)
        wake("plan", trigger=f"deadline of {job.pk} changed")
    job.refresh_from_db()
    return job


def _text(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "none"
