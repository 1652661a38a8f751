"""Accepts an offer: creates the admitted successor of a declined job, with the earliest deadline that has
room."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.utils import timezone

from cluster.models import Cluster
from projects.errors import Conflict
from projects.models import User
from scheduling.choices import JobEventKind, JobState, OfferState, PromiseOutcome
from scheduling.core.question.snapshot import StoredPlan
from scheduling.models import Job, Offer
from scheduling.services.generations.failure_charges import counts_on_sentence
from scheduling.services.requests.deciding_again import store_plans
from scheduling.services.rows.plan_json import plan_from_json, plan_to_json
from scheduling.services.rows.records import lock_cluster, move, planning_fact_changed, read_cluster, record
from scheduling.services.rows.slots import frozen_until
from scheduling.services.rows.wakeups import wake
from scheduling.services.snapshots.held_offers import held_offer_id
from scheduling.services.snapshots.isolating import FAILURES
from scheduling.services.snapshots.snapshots import asking_again, cluster_policy, pool_snapshot
from scheduling.services.verdicts.offers import seconds_from_acceptance
from scheduling.services.verdicts.quotas import PromiseQuotas, check_active_jobs
from scheduling.stored_verdict import AnswerCode, promised_on

log = structlog.get_logger(__name__)

#: Attempts to compute a better deadline before the offer is accepted as it is.
MOST_TRIES = 3


@dataclass(frozen=True)
class OfferTerms:
    """Terms of an accepted offer: the deadline, the plan that keeps it, and changed plans of other jobs."""

    deadline_at: datetime
    plan: StoredPlan
    others: dict[str, StoredPlan]


def job_accept_offer(*, job: Job, actor: User) -> Job:
    """Create the admitted successor of a declined job, on the capacity held for it.

    The offered deadline holds however late it is accepted. Accepting sooner gives an earlier deadline if
    admission finds room for it beside all promises.

    Raises:
        Conflict: there is no offer; it has expired, was withdrawn or accepted already; or the project is
            archived.
        QuotaExceeded: the project, or its creator's projects in sum, have as many unfinished jobs as
            permitted.
    """
    for _ in range(MOST_TRIES):
        version = Cluster.objects.values_list("planning_version", flat=True).get(pk=job.cluster_id)
        sooner = _sooner(job)
        successor = _accepted(job, actor, sooner, version)
        if successor is not None:
            return successor
    accepted = _accepted(job, actor, None, None)
    assert accepted is not None
    return accepted


@transaction.atomic
def _accepted(job: Job, actor: User, sooner: OfferTerms | None, version: int | None) -> Job | None:
    """Return the successor, by the better terms if these were computed; None if facts have changed since."""
    # Before the cluster's row: submissions lock in this order.
    check_active_jobs(job.project)
    cluster = lock_cluster(job.cluster_id)
    if sooner is not None and cluster.planning_version != version:
        return None
    now = timezone.now()
    offer = Offer.objects.select_for_update().filter(job=job).first()
    if offer is None:
        raise Conflict(f"Job {job.pk} has no offer.")
    if offer.state == OfferState.ACCEPTED:
        raise Conflict(f"The offer was accepted already, as job {offer.accepted_job_id}.")
    if offer.state == OfferState.DECLINED:
        raise Conflict("The offer was declined; submit the job again to get a new one.")
    if offer.state != OfferState.OPEN or offer.valid_until <= now:
        raise Conflict("The offer has expired; submit the job again to get a new one.")
    terms = sooner or _as_offered(offer)
    successor = _admitted_successor(job, terms, actor, now)
    store_plans(terms.others)
    offer.state = OfferState.ACCEPTED
    offer.accepted_job = successor
    offer.save(update_fields=["state", "accepted_job"])
    planning_fact_changed(cluster)
    wake("plan", trigger=f"offer accepted as {successor.pk}")
    return successor


def _as_offered(offer: Offer) -> OfferTerms:
    plan = plan_from_json(offer.plan)
    if plan is None:
        raise Conflict("The offer no longer fits the cluster; submit the job again to get a new one.")
    return OfferTerms(offer.deadline_at, plan, {})


def _sooner(job: Job) -> OfferTerms | None:
    """Return terms with the deadline counted from now instead of from the offer's end, with plans that
    keep it; None if the offer cannot be improved."""
    offer = Offer.objects.filter(job=job, state=OfferState.OPEN).first()
    now = timezone.now()
    if offer is None or offer.valid_until <= now or job.curve is None:
        return None
    cluster = read_cluster(job.cluster_id)
    seconds = seconds_from_acceptance(
        offer.deadline_at.timestamp(), offer.valid_until.timestamp(), cluster.slot_seconds
    )
    deadline_at = now + timedelta(seconds=seconds)
    if deadline_at >= offer.deadline_at:
        return None
    pool = pool_snapshot(cluster, job.curve.gpu_kind, now, reallocate_at=frozen_until(cluster, now))
    settled = tuple(each for each in pool.snapshot.jobs if not each.newcomer)
    held = tuple(each for each in pool.snapshot.held_offers if each.id != held_offer_id(job.pk))
    try:
        asking = asking_again(pool, job, job.curve, cluster.promise_margin)
        if asking is None:
            return None
        asking = dataclasses.replace(
            asking, newcomer=True, deadline_at=deadline_at.timestamp(), submitted_at=now.timestamp()
        )
        snapshot = dataclasses.replace(pool.snapshot, jobs=(*settled, asking), held_offers=held)
        decision = cluster_policy(cluster).admit(snapshot)
    except FAILURES:
        # The offer still stands.
        log.exception("offer_not_improved", job=job.pk)
        return None
    plans = dict(decision.plans)
    plan = plans.pop(asking.id, None)
    if plan is None or not any(each.promised for each in decision.verdicts):
        return None
    if PromiseQuotas(now, in_place_of=job.pk).refusal(job.project, plan) is not None:
        return None
    return OfferTerms(deadline_at, plan, plans)


def _admitted_successor(job: Job, terms: OfferTerms, actor: User, now: datetime) -> Job:
    copied = (
        "project_id", "cluster_id", "function_version_id", "curve_id", "name", "labels", "hyperparameters",
        "global_batch_size", "max_iterations", "target", "seed", "data", "checkpoint_seconds",
        "service_class", "protection_class", "asked_protection", "lossy", "codecs",
    )  # fmt: skip
    verdict = promised_on(
        terms.plan,
        terms.deadline_at,
        AnswerCode.OFFER_ACCEPTED,
        f"The offer made to job {job.pk} was accepted; its capacity was held.",
        counts_on=counts_on_sentence(job),
    )
    successor = Job.objects.create(
        owner=actor,
        deadline_at=terms.deadline_at,
        resubmission_of=job,
        promised=True,
        promise_outcome=PromiseOutcome.OPEN,
        plan=plan_to_json(terms.plan),
        verdict=verdict.as_json(),
        decided_at=now,
        **{name: getattr(job, name) for name in copied},
    )
    record(
        successor,
        JobEventKind.SUBMITTED,
        f"Submitted by {actor.username}: accepts the offer made to job {job.pk}.",
        actor=actor.username,
    )
    move(successor, JobState.ADMITTED, verdict.reason)
    return successor
