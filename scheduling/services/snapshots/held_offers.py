"""Open offers of one pool, whose capacity is held until they are accepted or end."""

from __future__ import annotations

from datetime import datetime

import structlog

from cluster.models import Cluster
from projects.prepared import PreparedRows, time_hole
from scheduling.choices import OfferState
from scheduling.core.question.snapshot import HeldOffer, JobSnapshot, ServiceClass
from scheduling.core.question.validation import check_offer
from scheduling.models import Offer
from scheduling.services.generations.failure_charges import FailureCharges
from scheduling.services.memory.disk_shares import levels_with_room
from scheduling.services.rows.plan_json import plan_from_json
from scheduling.services.snapshots.jobs_of_pool import UNREADABLE, core_curve, finishing_seconds

log = structlog.get_logger(__name__)


def held_offer_id(job_id: str) -> str:
    """Return the id of a job's offer in a snapshot."""
    return f"offer-{job_id}"


_OPEN = PreparedRows(
    lambda cluster_id, kind, now: (
        Offer.objects.filter(
            job__cluster=cluster_id,
            job__curve__gpu_kind=kind,
            state=OfferState.OPEN,
            valid_until__gt=time_hole(now),
        )
        .select_related("job__curve")
        .order_by("id")
    )
)


def held_offers(
    cluster: Cluster, kind: str, now: datetime, charges: FailureCharges, *, total: int
) -> list[HeldOffer]:
    """Return open offers, each with the job as it would be accepted, so that forecasts protect it like a
    promise."""
    held = []
    for offer in _OPEN.ask(cluster.pk, kind, now):
        try:
            made = _held(offer, cluster, charges, total=total)
            if made is not None:
                check_offer(made)
                held.append(made)
        except UNREADABLE as fault:
            log.error("offer_left_out", job=offer.job_id, reason=str(fault))
    return held


def _held(offer: Offer, cluster: Cluster, charges: FailureCharges, *, total: int) -> HeldOffer | None:
    plan = plan_from_json(offer.plan)
    job = offer.job
    levels = levels_with_room(job.curve.levels.all(), job.curve, cluster) if job.curve else []
    measured = core_curve(levels, batch=job.global_batch_size, total=total, margin=cluster.promise_margin)
    if plan is None or measured is None:
        return None
    counts_on = charges.of(job, measured, measured=job.curve)
    accepted = JobSnapshot(
        id=job.pk,
        service_class=ServiceClass(job.service_class),
        submitted_at=job.submitted_at.timestamp(),
        deadline_at=offer.deadline_at.timestamp(),
        remaining_iterations=float(job.max_iterations),
        curve=charges.promised(measured, counts_on),
        finishing_seconds=finishing_seconds(job.curve),
        failure_slack_seconds=counts_on.slack_seconds,
    )
    return HeldOffer(
        id=held_offer_id(job.pk), plan=plan, valid_until=offer.valid_until.timestamp(), job=accepted
    )
