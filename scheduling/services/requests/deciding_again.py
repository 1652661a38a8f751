"""Decides an existing job again: under another deadline, or after its owner resumed it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from django.db.models import QuerySet
from django.utils import timezone

from cluster.models import Cluster
from projects.prepared import PreparedValues
from scheduling.choices import (
    PLANNED_STATES,
    TERMINAL_STATES,
    UNDECIDED_STATES,
    GenerationState,
    Goal,
    JobEventKind,
    PromiseOutcome,
    ServiceClass,
)
from scheduling.core.question import snapshot as core
from scheduling.core.question.decision import Decision, Verdict
from scheduling.models import Generation, Job
from scheduling.services.generations.failure_charges import counts_on_sentence
from scheduling.services.rows.bulk import update_rows
from scheduling.services.rows.plan_json import plan_to_json, same_plan
from scheduling.services.rows.records import record
from scheduling.services.rows.slots import frozen_until
from scheduling.services.snapshots.snapshots import Pool, cluster_policy, pool_snapshot
from scheduling.services.verdicts.incidents import breaking_jobs
from scheduling.services.verdicts.quotas import PromiseQuotas
from scheduling.stored_verdict import ADMITTED, AnswerCode, StoredVerdict, answered

#: Limit of resumed jobs that one pass decides again.
MOST_AT_ONCE = 5


class HowAnswered(Protocol):
    """What to do if a question has no answer (`isolating`)."""

    def __call__(self, pool: Pool, ask: Callable[[Pool], Decision], /) -> Decision: ...


def decided_again(
    cluster: Cluster, job: Job, deadline_at: datetime | None, service_class: str, answered_by: HowAnswered
) -> tuple[Verdict | None, dict[str, core.StoredPlan]]:
    """Return the verdict on the job in place of its present promise, beside all other promises, and the
    changed plans that keep them.

    Raises:
        Exception: as ``answered_by`` raises if no answer can be computed.
    """
    if service_class == ServiceClass.BEST_EFFORT or deadline_at is None or job.curve is None:
        return None, {}
    now = timezone.now()
    pool = pool_snapshot(cluster, job.curve.gpu_kind, now, reallocate_at=frozen_until(cluster, now))
    jobs = tuple(
        dataclasses.replace(
            known,
            newcomer=True,
            promised=False,
            at_risk=False,
            stored_plan=None,
            service_class=core.ServiceClass(service_class),
            deadline_at=deadline_at.timestamp(),
        )
        if known.id == job.pk
        else known
        for known in pool.snapshot.jobs
        if known.id == job.pk or not known.newcomer
    )
    policy = cluster_policy(cluster)
    asked = dataclasses.replace(pool, snapshot=dataclasses.replace(pool.snapshot, jobs=jobs))
    decision = answered_by(asked, lambda one: policy.admit(one.snapshot))
    verdict = next((verdict for verdict in decision.verdicts if verdict.job_id == job.pk), None)
    # Most plans do not change, and thousands of jobs may have one.
    stored = {known.id: known.stored_plan for known in jobs}
    changed = {
        job_id: plan
        for job_id, plan in decision.plans.items()
        if job_id == job.pk or not same_plan(plan, stored.get(job_id))
    }
    return verdict, changed


def store_plans(plans: Mapping[str, core.StoredPlan]) -> None:
    """Store the plans of one decision for the jobs that are not finished."""
    settled = [*UNDECIDED_STATES, *TERMINAL_STATES]
    rows = list(Job.objects.filter(pk__in=plans).exclude(state__in=settled).only("pk"))
    for row in rows:
        row.plan = plan_to_json(plans[row.pk])
    update_rows(rows, ["plan"])


def jobs_asking_again(cluster_id: int) -> QuerySet[Job]:
    """Return resumed jobs whose promise was made void by their pause."""
    return Job.objects.filter(cluster=cluster_id, promise_asked_again=True, state__in=PLANNED_STATES)


_ASKED_AGAIN = PreparedValues(
    lambda cluster_id: jobs_asking_again(cluster_id).order_by().values_list("pk")[:1]
)


def jobs_to_decide_again(cluster: Cluster) -> list[str]:
    """Return resumed jobs whose promise was made void by their pause, once none of their steps is under
    way."""
    if not _ASKED_AGAIN.any(cluster.pk):  # as in most passes
        return []
    jobs = jobs_asking_again(cluster.pk)
    changing = Generation.objects.exclude(state__in=[GenerationState.LIVE, GenerationState.RETIRED])
    leaving = Generation.objects.filter(state=GenerationState.LIVE).exclude(goal=Goal.TRAIN)
    settled = jobs.exclude(pk__in=changing.values("job_id")).exclude(pk__in=leaving.values("job_id"))
    # A job that broke a plan takes part again after a while, and is decided then.
    plannable = settled.exclude(pk__in=breaking_jobs(cluster, timezone.now()))
    return list(plannable.order_by("pk").values_list("pk", flat=True)[:MOST_AT_ONCE])


def restore_promise(job: Job, verdict: Verdict | None, plans: Mapping[str, core.StoredPlan]) -> bool:
    """Store the decision on a resumed job. Return whether its promise is restored."""
    plan = plans.get(job.pk)
    refusal = "" if verdict is None else verdict.reason
    promised = verdict is not None and verdict.promised and plan is not None
    if promised and plan is not None:
        over = PromiseQuotas(timezone.now(), in_place_of=job.pk).refusal(job.project, plan)
        promised, refusal = over is None, over or refusal
    job.promise_asked_again = False
    fields = ["promise_asked_again", "verdict"]
    if promised and verdict is not None:
        again = f"Promised again after its pause: {verdict.reason}"
        answer = answered(verdict, plan, job.deadline_at, counts_on=counts_on_sentence(job))
        job.verdict = replace(answer, reason=again).as_json()
        job.promised, job.at_risk = True, False
        job.promise_outcome, job.void_reason = PromiseOutcome.OPEN, ""
        job.save(update_fields=[*fields, "promised", "at_risk", "promise_outcome", "void_reason"])
        store_plans(plans)
        record(job, JobEventKind.PROMISED_AGAIN, f"Its promise holds again: {verdict.reason}")
        return True
    reason = refusal or "no plan for it is known"
    job.verdict = replace(
        StoredVerdict.from_json(job.verdict),
        decision=ADMITTED,
        reason_code=AnswerCode.PROMISE_NOT_RESTORED,
        reason=f"It runs on without a promise after its pause: {reason}",
        minimum_satisfactory_share=(),
        slack_seconds=None,
        counts_on="",
        planned_finish_at=None,
        planned_start_at=None,
    ).as_json()
    job.save(update_fields=fields)
    record(
        job, JobEventKind.PROMISE_NOT_RESTORED, f"Its promise could not be restored after its pause: {reason}"
    )
    return False
