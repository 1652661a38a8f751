"""Search for offers: at once for a job that is declined alone, after all verdicts while many newcomers
wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import structlog
from django.db.models import QuerySet
from django.utils import timezone

from cluster.models import Cluster
from projects.prepared import PreparedValues
from scheduling.choices import CurveState, JobState, ServiceClass
from scheduling.core.question.decision import FoundOffer
from scheduling.core.question.snapshot import HeldOffer, JobSnapshot, Snapshot
from scheduling.models import Job, ScalingCurve
from scheduling.models.functions import UNREAD_OF_VERSION
from scheduling.policies import Policy
from scheduling.services.rows.borrowed import curve_on
from scheduling.services.rows.bulk import update_rows
from scheduling.services.rows.records import planning_fact_changed
from scheduling.services.rows.slots import frozen_until
from scheduling.services.rows.wakeups import wake
from scheduling.services.snapshots.isolating import FAILURES
from scheduling.services.snapshots.kinds import kinds_to_ask
from scheduling.services.snapshots.planner_lease import unmoved
from scheduling.services.snapshots.snapshots import asking_again, cluster_policy, pool_snapshot
from scheduling.services.verdicts.offers import (
    end_waits,
    projects_without_offer,
    with_offer,
    within_horizon,
)
from scheduling.services.verdicts.quotas import PromiseQuotas
from scheduling.stored_verdict import StoredVerdict

log = structlog.get_logger(__name__)


def find_offers(policy: Policy, snapshot: Snapshot, asking: Sequence[JobSnapshot]) -> dict[str, FoundOffer]:
    """Return offers by job id, each beside those found before it. ``snapshot`` holds all jobs but those
    ``asking``."""
    offers: dict[str, FoundOffer] = {}
    for job in asking:
        found = policy.find_offer(snapshot, job)
        if found is not None and within_horizon(found.deadline_at, snapshot.now):
            offers[job.id] = found
            snapshot = _with_offer(snapshot, job, found)
    return offers


def offers_wait(cluster: Cluster) -> bool:
    """Return whether a declined job still awaits a search for an offer."""
    return _AWAITING.any(cluster.pk)


def jobs_awaiting_offer(cluster_id: int) -> QuerySet[Job]:
    """Return declined jobs that still await a search for an offer."""
    return Job.objects.filter(cluster=cluster_id, awaits_offer=True)


_AWAITING = PreparedValues(
    lambda cluster_id: jobs_awaiting_offer(cluster_id).order_by().values_list("pk")[:1]
)


def offer_awaited(cluster: Cluster, epoch: int, now: datetime, most: int) -> int:
    """Search offers for up to ``most`` jobs that were declined while newcomers waited. Return the number of
    commits.

    Raises:
        Moved: the facts changed meanwhile; nothing was written.
    """
    if not offers_wait(cluster):
        return 0
    waiting = jobs_awaiting_offer(cluster.pk).order_by("submitted_at", "id")
    rows = {
        row.pk: row
        for row in waiting.select_related("curve", "function_version", "project", "cluster").defer(
            UNREAD_OF_VERSION
        )[: 4 * most]
    }
    if not rows:
        return 0
    chosen = projects_without_offer(list(rows))[:most]
    policy = cluster_policy(cluster)
    found: dict[str, tuple[FoundOffer, ScalingCurve]] = {}
    for kind in kinds_to_ask(cluster, ServiceClass.SLO):
        curves = _curves_to_ask([rows[job_id] for job_id in chosen], kind)
        if not curves:
            continue
        pool = pool_snapshot(cluster, kind, now, reallocate_at=frozen_until(cluster, now))
        try:
            asking = [
                job
                for job_id, curve in curves.items()
                if (job := asking_again(pool, rows[job_id], curve, cluster.promise_margin)) is not None
            ]
            offers = find_offers(policy, pool.snapshot, asking)
        except FAILURES:
            # No offer was promised to these jobs, and the pass goes on.
            log.exception("offers_not_found", jobs=list(curves))
            continue
        for job_id, offer in offers.items():
            if job_id not in found or offer.deadline_at < found[job_id][0].deadline_at:
                found[job_id] = (offer, curves[job_id])
    with unmoved(cluster, epoch):
        _commit(cluster, [rows[job_id] for job_id in chosen], found)
    return 1


def _curves_to_ask(rows: Sequence[Job], kind: str) -> dict[str, ScalingCurve]:
    """Return curves on a kind of GPU, by job id, of declined jobs that were tried and measured there."""
    asked = [
        row
        for row in rows
        if row.state == JobState.DECLINED
        and row.curve is not None
        and kind in (row.curve.gpu_kind, *row.refused_kinds)
    ]
    curves = {row.pk: curve_on(row, kind) for row in asked}
    return {key: curve for key, curve in curves.items() if curve and curve.state == CurveState.READY}


def _commit(
    cluster: Cluster,
    tried: Sequence[Job],
    found: Mapping[str, tuple[FoundOffer, ScalingCurve]],
) -> None:
    quotas = PromiseQuotas(timezone.now())
    for row in tried:
        row.awaits_offer = False
        if row.pk in found:
            offer, row.curve = found[row.pk]
            row.verdict = with_offer(StoredVerdict.from_json(row.verdict), row, offer, quotas).as_json()
        row.save(update_fields=["awaits_offer", "verdict", "curve"])
    others = jobs_awaiting_offer(cluster.pk).only("project_id", "verdict")
    update_rows(end_waits(others, {row.project_id: row.pk for row in tried}), ["awaits_offer", "verdict"])
    if found:
        planning_fact_changed(cluster)
    if offers_wait(cluster):
        wake("plan", trigger="offers wait")


def _with_offer(snapshot: Snapshot, job: JobSnapshot, found: FoundOffer) -> Snapshot:
    accepted = replace(job, deadline_at=found.deadline_at)
    valid_until = snapshot.now + snapshot.settings.offer_hold_seconds
    held = HeldOffer(id=f"offer-{job.id}", plan=found.plan, valid_until=valid_until, job=accepted)
    return replace(snapshot, held_offers=(*snapshot.held_offers, held))
