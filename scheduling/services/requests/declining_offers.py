"""Declines an offer, so that the capacity held for a declined job is free at once."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from projects.errors import Conflict
from projects.models import User
from scheduling.choices import JobEventKind, OfferState
from scheduling.models import Job, Offer
from scheduling.services.rows.records import lock_cluster, planning_fact_changed, record
from scheduling.services.rows.wakeups import wake


@transaction.atomic
def job_decline_offer(*, job: Job, actor: User) -> Job:
    """Release what is held for a declined job's offer. Idempotent.

    Raises:
        Conflict: there is no offer, or it has expired, was withdrawn or accepted already.
    """
    cluster = lock_cluster(job.cluster_id)
    offer = Offer.objects.select_for_update().filter(job=job).first()
    if offer is None:
        raise Conflict(f"Job {job.pk} has no offer.")
    if offer.state == OfferState.DECLINED:
        return job
    if offer.state == OfferState.ACCEPTED:
        raise Conflict(f"The offer was accepted already, as job {offer.accepted_job_id}; cancel that.")
    if offer.state != OfferState.OPEN or offer.valid_until <= timezone.now():
        raise Conflict("The offer has expired; no GPUs are reserved for it.")
    offer.state = OfferState.DECLINED
    offer.save(update_fields=["state"])
    record(
        job,
        JobEventKind.OFFER_DECLINED,
        f"{actor.username} declined the offer; its capacity is free again.",
        actor=actor.username,
    )
    planning_fact_changed(cluster)
    wake("plan", trigger=f"offer to {job.pk} declined")
    return job
