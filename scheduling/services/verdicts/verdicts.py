"""Stores the verdicts of a decision in bulk, since a burst of thousands must not take a query each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from django.utils import timezone

from scheduling.choices import JobState, PromiseOutcome
from scheduling.core.question.decision import Decision as CoreDecision
from scheduling.core.question.decision import FoundOffer, Verdict
from scheduling.core.question.snapshot import StoredPlan
from scheduling.models import Decision, Job, ScalingCurve
from scheduling.services.generations.failure_charges import CountsOn, class_as_json
from scheduling.services.memory.tier_options import tier_options
from scheduling.services.rows.plan_json import plan_to_json
from scheduling.services.rows.records import Move, move_all
from scheduling.services.verdicts.offers import end_waits, with_offer
from scheduling.services.verdicts.quotas import PromiseQuotas, refused_by_quota, without_copies
from scheduling.stored_verdict import AnswerCode, StoredVerdict, answered

_WRITTEN = (
    "decided_at",
    "verdict",
    "promised",
    "promise_outcome",
    "plan",
    "awaits_offer",
    "protection_class",
)


def apply_verdicts(
    jobs: Mapping[str, Job],
    decision: CoreDecision,
    offers: Mapping[str, FoundOffer],
    offers_awaited: Iterable[str],
    row: Decision | None,
    counts_on: Mapping[str, CountsOn],
) -> set[str]:
    """Store the newcomers' verdicts and what their promises assume. Return the ids of declined jobs, by
    plan or by quota."""
    quotas = PromiseQuotas(timezone.now())
    tiers = _tiers(jobs, decision)
    awaited = set(offers_awaited)
    moves = []
    refused = set()
    for verdict in decision.verdicts:
        job = jobs[verdict.job_id]
        plan = decision.plans.get(job.pk)
        told = counts_on.get(job.pk)
        if told is not None and told.failures and not job.protection_class:
            job.protection_class = class_as_json(told)
        answer = replace(_answer(job, verdict, plan, quotas, row, told), tiers=tiers.get(job.pk))
        job.decided_at = timezone.now()
        over_quota = answer.reason_code == AnswerCode.QUOTA
        # A later deadline does not help if there is no room for the copies.
        may_be_offered = not over_quota and not (told is not None and told.shortfall)
        if answer.declined:
            refused.add(job.pk)
            job.awaits_offer = job.pk in awaited and may_be_offered
            if job.pk in offers and may_be_offered:
                answer = with_offer(answer, job, offers[job.pk], quotas)
            job.verdict = answer.as_json()
            moves.append(Move(job, JobState.DECLINED, answer.reason, {"code": answer.reason_code}))
            continue
        job.verdict = answer.as_json()
        job.promised = verdict.promised and not over_quota and answer.reason_code != AnswerCode.PROTECTION
        job.promise_outcome = PromiseOutcome.OPEN if job.promised else PromiseOutcome.NONE
        job.plan = plan_to_json(plan) if plan is not None else None
        moves.append(Move(job, JobState.ADMITTED, answer.reason, {"code": answer.reason_code}))
    end_waits([move.job for move in moves if move.job.awaits_offer], {})
    move_all(moves, fields=_WRITTEN, decision=row)
    return refused


def _tiers(jobs: Mapping[str, Job], decision: CoreDecision) -> dict[str, dict[str, Any] | None]:
    """Return the tiers for verdicts, by job id; jobs whose function uses none are left out."""
    asked = [jobs[verdict.job_id] for verdict in decision.verdicts]
    curves = ScalingCurve.objects.filter(
        pk__in={job.curve_id for job in asked}, mixture__layers__contains=[{"is_tiered": True}]
    )
    known = {curve.pk: curve for curve in curves.prefetch_related("levels")} if asked else {}
    return {
        job.pk: tier_options(job.cluster, known[job.curve_id], known[job.curve_id].levels.all(), batch)
        for job in asked
        if job.curve_id in known and (batch := job.global_batch_size)
    }


def _answer(
    job: Job,
    verdict: Verdict,
    plan: StoredPlan | None,
    quotas: PromiseQuotas,
    row: Decision | None,
    counts_on: CountsOn | None,
) -> StoredVerdict:
    """Return the verdict to store, after checking quotas and copies."""
    sentence = "" if counts_on is None else counts_on.sentence()
    answer = answered(verdict, plan, job.deadline_at, row.pk if row else None, counts_on=sentence)
    if counts_on is not None and counts_on.shortfall and verdict.admitted:
        return without_copies(answer, counts_on.shortfall, job.service_class, promised=verdict.promised)
    if not verdict.admitted or plan is None or not verdict.promised:
        return answer
    refusal = quotas.refusal(job.project, plan)
    return answer if refusal is None else refused_by_quota(answer, refusal, job.service_class)
