"""Offers: a deadline that can be promised, held for a short time for a project whose job was declined."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from cluster.models import Cluster
from projects.errors import Conflict
from projects.models import User
from scheduling.choices import JobState, OfferState, PromiseOutcome
from scheduling.core.decision import Decision as CoreDecision
from scheduling.core.decision import FoundOffer
from scheduling.core.snapshot import Snapshot
from scheduling.models import Job, Offer
from scheduling.moments import LONGEST_DEADLINE, rfc3339
from scheduling.services.plan_json import plan_to_json
from scheduling.services.quotas import check_active_jobs
from scheduling.services.records import lock_cluster, move, planning_fact_changed, record
from scheduling.services.wakeups import wake


def snapshot_after(snapshot: Snapshot, decision: CoreDecision) -> Snapshot:
    """The snapshot as it stands once the decision's verdicts and plans hold: what an offer is searched in."""
    verdicts = {verdict.job_id: verdict for verdict in decision.verdicts}
    jobs = []
    for job in snapshot.jobs:
        verdict = verdicts.get(job.id)
        if verdict is not None and not verdict.admitted or verdict is None and job.newcomer:
            continue
        promised = verdict.promised if verdict is not None else job.promised
        plan = decision.plans.get(job.id, job.stored_plan)
        jobs.append(dataclasses.replace(job, newcomer=False, promised=promised, stored_plan=plan))
    return dataclasses.replace(snapshot, jobs=tuple(jobs), memory=decision.memory or snapshot.memory)


def within_horizon(deadline_at: float, now: float) -> bool:
    """Whether a deadline in Unix seconds is near enough to be asked for, and so to be offered."""
    return deadline_at - now <= LONGEST_DEADLINE.total_seconds()


def projects_without_offer(job_ids: Sequence[str]) -> list[str]:
    """Of these declined jobs, in order, the first of each project that has no open offer."""
    projects = dict(Job.objects.filter(pk__in=job_ids).values_list("pk", "project_id"))
    taken = set(
        Offer.objects.filter(project_id__in=projects.values(), state=OfferState.OPEN).values_list(
            "project_id", flat=True
        )
    )
    chosen = []
    for job_id in job_ids:
        if projects[job_id] not in taken:
            taken.add(projects[job_id])
            chosen.append(job_id)
    return chosen


def offer_create(job: Job, found: FoundOffer) -> dict[str, Any]:
    """Hold the found capacity for the job's project. Returns the offer as the verdict shows it."""
    valid_until = timezone.now() + timedelta(seconds=job.cluster.offer_hold_seconds)
    # Rounded up to the millisecond: never earlier than what was verified.
    deadline_at = datetime.fromtimestamp(math.ceil(found.deadline_at * 1000) / 1000, tz=UTC)
    Offer.objects.create(
        job=job,
        project=job.project,
        deadline_at=deadline_at,
        plan=plan_to_json(found.plan),
        valid_until=valid_until,
    )
    record(
        job,
        "offer",
        f"{deadline_at:%Y-%m-%d %H:%M:%S} UTC could be promised; held until {valid_until:%H:%M:%S} UTC.",
    )
    return {"deadline_at": _rfc3339(deadline_at), "valid_until": _rfc3339(valid_until)}


def expire_offers(cluster: Cluster, now: datetime) -> int:
    """End the offers whose time is up; the held capacity is free again."""
    expired = Offer.objects.filter(job__cluster=cluster, state=OfferState.OPEN, valid_until__lte=now)
    return expired.update(state=OfferState.EXPIRED)


@transaction.atomic
def job_accept_offer(*, job: Job, actor: User) -> Job:
    """Make the admitted successor of a declined job, on the capacity that was held for it.

    Raises:
        Conflict: there is no offer, or it has run out, was withdrawn or accepted already.
        Conflict: or the project is archived.
        QuotaExceeded: the project, or its creator's projects in sum, have as many unfinished jobs as they may.
    """
    # Before the cluster's row: in the order in which a submission locks.
    check_active_jobs(job.project)
    cluster = lock_cluster(job.cluster_id)
    now = timezone.now()
    offer = Offer.objects.select_for_update().filter(job=job).first()
    if offer is None:
        raise Conflict(f"Job {job.pk} has no offer.")
    if offer.state == OfferState.ACCEPTED:
        raise Conflict(f"The offer was accepted already, as job {offer.accepted_job_id}.")
    if offer.state != OfferState.OPEN or offer.valid_until <= now:
        raise Conflict("The offer has run out; submit the job again to get a new one.")
    successor = _admitted_successor(job, offer, actor, now)
    offer.state = OfferState.ACCEPTED
    offer.accepted_job = successor
    offer.save(update_fields=["state", "accepted_job"])
    planning_fact_changed(cluster)
    wake("plan", trigger=f"offer accepted as {successor.pk}")
    return successor


def _admitted_successor(job: Job, offer: Offer, actor: User, now: datetime) -> Job:
    copied = (
        "project_id", "cluster_id", "function_version_id", "curve_id", "name", "labels", "hyperparameters",
        "global_batch_size", "max_iterations", "target", "seed", "data", "checkpoint_seconds", "service_class",
    )  # fmt: skip
    finish = offer.plan["finish_at"]
    verdict = {
        **(job.verdict or {}),
        "decision": "admitted",
        "reason_code": "offer_accepted",
        "reason": f"The offer made to job {job.pk} was accepted; its capacity was held.",
        "planned_start_at": rfc3339(next(iter(offer.plan["start"]), None)),
        "planned_finish_at": rfc3339(finish),
        "slack_seconds": None if finish is None else offer.deadline_at.timestamp() - finish,
        "missing_gpus": 0,
        "offer": None,
    }
    successor = Job.objects.create(
        owner=actor,
        deadline_at=offer.deadline_at,
        resubmission_of=job,
        promised=True,
        promise_outcome=PromiseOutcome.OPEN,
        plan=offer.plan,
        verdict=verdict,
        decided_at=now,
        **{name: getattr(job, name) for name in copied},
    )
    record(
        successor,
        "submitted",
        f"Submitted by {actor.username}: accepts the offer made to job {job.pk}.",
        actor=actor.username,
    )
    move(successor, JobState.ADMITTED, str(verdict["reason"]))
    return successor


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
