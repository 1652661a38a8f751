"""Offers: a deadline that can be promised, held for a short time for the project of a declined job."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from django.db.models import QuerySet
from django.db.models.expressions import RawSQL
from django.utils import timezone

from cluster.models import Cluster
from projects.prepared import PreparedValues, time_hole
from scheduling.choices import JobEventKind, OfferState
from scheduling.core.question.decision import Decision as CoreDecision
from scheduling.core.question.decision import FoundOffer
from scheduling.core.question.snapshot import Snapshot
from scheduling.models import Job, Offer
from scheduling.moments import LONGEST_DEADLINE, moment
from scheduling.services.rows.plan_json import plan_to_json
from scheduling.services.rows.records import record
from scheduling.services.verdicts.quotas import PromiseQuotas
from scheduling.stored_verdict import StoredVerdict


def snapshot_after(snapshot: Snapshot, decision: CoreDecision) -> Snapshot:
    """Return the snapshot after the decision's verdicts and plans, in which offers are searched."""
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
    """Return whether a deadline in Unix seconds is near enough to be requested, and so to be offered."""
    return deadline_at - now <= LONGEST_DEADLINE.total_seconds()


def projects_without_offer(job_ids: Sequence[str]) -> list[str]:
    """Return for each project without an open offer the first of these declined jobs, in order."""
    projects = dict(Job.objects.filter(pk__in=job_ids).values_list("pk", "project_id"))
    taken = set(_open_offers(projects.values()))
    chosen = []
    for job_id in job_ids:
        if projects[job_id] not in taken:
            taken.add(projects[job_id])
            chosen.append(job_id)
    return chosen


def end_waits(jobs: Iterable[Job], tried: Mapping[int, str]) -> list[Job]:
    """End the wait for an offer of jobs whose project has an open offer, or whose project's first job was
    tried in vain; their verdicts name that job. Return the changed jobs.

    ``tried``: by project, the job for which an offer was searched.
    """
    waiting = list(jobs)
    offers = _open_offers({job.project_id for job in waiting}) if waiting else {}
    ended = []
    for job in waiting:
        offer = offers.get(job.project_id)
        if offer is not None:
            sentence = (
                "No later deadline is offered, since a project has one offer at a time: that to job "
                f"{offer.job_id}, held until {offer.valid_until:%H:%M:%S} UTC. Submit again once it is "
                "accepted, declined or over."
            )
        elif job.project_id in tried:
            sentence = (
                f"No later deadline can be promised to job {tried[job.project_id]}, which was tried first in "
                "the project; a what-if tells if this job could have one."
            )
        else:
            continue
        job.awaits_offer = False
        verdict = StoredVerdict.from_json(job.verdict)
        if verdict.declined:
            job.verdict = dataclasses.replace(verdict, no_offer=sentence).as_json()
        ended.append(job)
    return ended


def _open_offers(project_ids: Collection[int]) -> dict[int, Offer]:
    held = Offer.objects.filter(project_id__in=project_ids, state=OfferState.OPEN)
    return {offer.project_id: offer for offer in held.only("project_id", "job_id", "valid_until")}


def with_offer(answer: StoredVerdict, job: Job, found: FoundOffer, quotas: PromiseQuotas) -> StoredVerdict:
    """Hold the found capacity for the job's project. Return the job's verdict with the offer, or with the
    reason why the quota forbids it."""
    refusal = quotas.refusal(job.project, found.plan)
    if refusal is not None:
        return dataclasses.replace(
            answer, no_offer=f"A later deadline could be kept, but is not offered: {refusal}"
        )
    valid_until = timezone.now() + timedelta(seconds=job.cluster.offer_hold_seconds)
    if (starts_at := moment(found.starts_at)) is not None:
        # Computing takes time: an offer must not be accepted after its plan should have begun.
        valid_until = min(valid_until, starts_at)
    # Rounded up to the millisecond, so never earlier than verified.
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
        JobEventKind.OFFER,
        f"{deadline_at:%Y-%m-%d %H:%M:%S} UTC could be promised; held until {valid_until:%H:%M:%S} UTC. "
        "Accepting sooner gives an earlier deadline if there is room.",
    )
    seconds = seconds_from_acceptance(
        deadline_at.timestamp(), valid_until.timestamp(), job.cluster.slot_seconds
    )
    offer = {
        "deadline_at": _rfc3339(deadline_at),
        "valid_until": _rfc3339(valid_until),
        "deadline_seconds": seconds,
    }
    return dataclasses.replace(answer, offer=offer, no_offer="")


def seconds_from_acceptance(deadline_at: float, starts_at: float, slot_seconds: float) -> float:
    """Return the deadline in seconds from acceptance: the time of the work that is planned from
    ``starts_at``, plus the wait for a slot."""
    return float(math.ceil(deadline_at - starts_at + slot_seconds))


def expire_offers(cluster: Cluster, now: datetime) -> int:
    """Expire offers whose time is up, which frees the held capacity. Return their number."""
    expired = [offer_id for (offer_id,) in _EXPIRED.ask(cluster.pk, now)]
    return Offer.objects.filter(pk__in=expired).update(state=OfferState.EXPIRED) if expired else 0


def expired_offers(cluster_id: int, now: datetime | RawSQL) -> QuerySet[Offer]:
    """Return open offers whose time is up."""
    return Offer.objects.filter(job__cluster=cluster_id, state=OfferState.OPEN, valid_until__lte=now)


_EXPIRED = PreparedValues(
    lambda cluster_id, now: expired_offers(cluster_id, time_hole(now)).values_list("pk")
)


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
