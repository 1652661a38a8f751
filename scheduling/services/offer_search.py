"""Looking for offers: at once for who is declined alone, and after all verdicts where many newcomers wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import structlog
from django.db.models import F

from cluster.models import Cluster
from scheduling.choices import JobState
from scheduling.core.decision import FoundOffer
from scheduling.core.snapshot import HeldOffer, JobSnapshot, Snapshot
from scheduling.models import Job
from scheduling.policies import Policy
from scheduling.services.isolating import FAILURES
from scheduling.services.offers import offer_create, projects_without_offer, within_horizon
from scheduling.services.planner_lease import unmoved
from scheduling.services.slots import frozen_until
from scheduling.services.snapshots import asking_again, cluster_policy, pool_snapshot
from scheduling.services.wakeups import wake

log = structlog.get_logger(__name__)


def find_offers(policy: Policy, snapshot: Snapshot, asking: Sequence[JobSnapshot]) -> dict[str, FoundOffer]:
    """Offers by job id, each beside those found before it. ``snapshot`` holds everybody but who asks."""
    offers: dict[str, FoundOffer] = {}
    for job in asking:
        found = policy.find_offer(snapshot, job)
        if found is not None and within_horizon(found.deadline_at, snapshot.now):
            offers[job.id] = found
            snapshot = _with_offer(snapshot, job, found)
    return offers


def offers_wait(cluster: Cluster) -> bool:
    """Whether a declined job is still to be looked an offer for."""
    return Job.objects.filter(cluster=cluster, awaits_offer=True).exists()


def offer_awaited(cluster: Cluster, epoch: int, now: datetime, most: int) -> int:
    """Look for offers for up to ``most`` jobs that were declined while newcomers waited. Returns the number of commits.

    Raises:
        Moved: the facts changed meanwhile; nothing was written.
    """
    waiting = Job.objects.filter(cluster=cluster, awaits_offer=True).order_by("submitted_at", "id")
    rows = {row.pk: row for row in waiting.select_related("curve", "project", "cluster")[: 4 * most]}
    if not rows:
        return 0
    chosen = projects_without_offer(list(rows))[:most]
    policy = cluster_policy(cluster)
    found: dict[str, FoundOffer] = {}
    kinds = {curve.gpu_kind for job_id in chosen if (curve := rows[job_id].curve) is not None}
    for kind in sorted(kinds):
        pool = pool_snapshot(cluster, kind, now, reallocate_at=frozen_until(cluster, now))
        asking = [
            job
            for job_id in chosen
            if (row := rows[job_id]).curve is not None
            and row.curve.gpu_kind == kind
            and row.state == JobState.DECLINED
            and (job := asking_again(pool, row, cluster.promise_margin)) is not None
        ]
        try:
            found |= find_offers(policy, pool.snapshot, asking)
        except FAILURES:
            # Whoever is to blame, nobody was promised an offer, and the pass goes on.
            log.exception("offers_not_found", jobs=[job.id for job in asking])
    # Nobody of a project that holds an offer gets another one.
    done = [job_id for job_id in rows if job_id in chosen or len(chosen) < most]
    with unmoved(cluster, epoch):
        _commit(cluster, rows, done, found)
    return 1


def _commit(cluster: Cluster, rows: dict[str, Job], done: list[str], found: dict[str, FoundOffer]) -> None:
    for job_id in done:
        row = rows[job_id]
        row.awaits_offer = False
        if job_id in found:
            row.verdict = {**(row.verdict or {}), "offer": offer_create(row, found[job_id])}
        row.save(update_fields=["awaits_offer", "verdict"])
    if found:
        Cluster.objects.filter(pk=cluster.pk).update(planning_version=F("planning_version") + 1)
    if offers_wait(cluster):
        wake("plan", trigger="offers wait")


def _with_offer(snapshot: Snapshot, job: JobSnapshot, found: FoundOffer) -> Snapshot:
    accepted = replace(job, deadline_at=found.deadline_at)
    valid_until = snapshot.now + snapshot.settings.offer_hold_seconds
    held = HeldOffer(id=f"offer-{job.id}", plan=found.plan, valid_until=valid_until, job=accepted)
    return replace(snapshot, held_offers=(*snapshot.held_offers, held))
