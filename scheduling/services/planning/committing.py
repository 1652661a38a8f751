"""Stores a decision: verdicts, plans, risks, new generations, and the decision itself with its input.

The caller holds the cluster's row and has checked that no planning fact moved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path

from django.utils import timezone

from cluster.models import Cluster, Gpu
from scheduling.choices import Goal, JobEventKind
from scheduling.core.question.decision import ChangeKind, FoundOffer
from scheduling.core.question.decision import Decision as CoreDecision
from scheduling.core.question.quantities import gpus_text
from scheduling.core.question.recording import pack_snapshot
from scheduling.core.question.snapshot import JobSnapshot, StoredPlan
from scheduling.models import Decision, Job
from scheduling.models.functions import versions_of_many
from scheduling.services.generations.generations import (
    NewGeneration,
    create_generations,
    training_generations,
)
from scheduling.services.generations.lifecycle import suspend
from scheduling.services.generations.server_ports import NoFreePort
from scheduling.services.rows.bulk import update_rows, update_values
from scheduling.services.rows.plan_json import plan_to_json, same_plan
from scheduling.services.rows.records import JobNote, record_all
from scheduling.services.rows.utilisation import take_sample
from scheduling.services.snapshots.snapshots import Pool
from scheduling.services.verdicts.incidents import note_no_port, note_ports
from scheduling.services.verdicts.verdicts import apply_verdicts


def commit_decision(
    cluster: Cluster,
    *,
    pool: Pool,
    answer: CoreDecision,
    decision: CoreDecision,
    offers: Mapping[str, FoundOffer],
    offers_awaited: Sequence[str] = (),
    epoch: int,
    reallocated: bool,
    compute_seconds: float,
    trigger: str,
) -> Decision | None:
    """Store one pool's decision. Return its row, or None if it contains nothing new.

    ``answer``: the policy's full answer, stored as is; ``decision``: the same without refusals that are not
    final. ``offers_awaited``: declined jobs for which an offer is searched once no newcomer waits.
    """
    concerned = {verdict.job_id for verdict in decision.verdicts} | {
        change.job_id for change in decision.changes
    }
    before = {job.id: job for job in pool.snapshot.jobs}
    jobs = _jobs_of(concerned, _with_other_risk(before, decision) - concerned)
    newly_at_risk = [job_id for job_id in decision.at_risk if job_id in jobs and not jobs[job_id].at_risk]
    gpus = pool.gpu_rows(address for change in answer.changes for address in change.addresses)
    row = None
    if decision.verdicts or decision.changes or newly_at_risk:
        final = {verdict.job_id for verdict in decision.verdicts}
        row = _decision_row(cluster, pool, gpus, answer, final, epoch, reallocated, compute_seconds, trigger)
        row.jobs.set([jobs[job_id] for job_id in sorted(concerned | set(newly_at_risk)) if job_id in jobs])
    refused = apply_verdicts(jobs, decision, offers, offers_awaited, row, pool.counts_on)
    _store_plans(jobs, before, decision.plans, refused)
    _store_memory(cluster, pool.kind, before, decision)
    _store_risks(jobs, set(decision.at_risk), row)
    without_port = _apply_changes(jobs, decision, refused, gpus, epoch, row)
    if reallocated:
        note_ports(cluster, {job.id for job in pool.snapshot.jobs} - without_port, timezone.now())
        take_sample(cluster)
    return row


def _with_other_risk(before: Mapping[str, JobSnapshot], decision: CoreDecision) -> set[str]:
    """Return jobs whose risk differs from the snapshot's. No fact has moved since it was read, so the rows of
    all others need not be read."""
    at_risk = set(decision.at_risk)
    told = (set(decision.plans) | at_risk) & set(before)
    return {job_id for job_id in told if before[job_id].at_risk != (job_id in at_risk)}


def _jobs_of(concerned: Collection[str], others: Collection[str]) -> dict[str, Job]:
    """Return the jobs of a decision with what their verdicts need, and those whose risk changes."""
    told = (
        Job.objects.filter(pk__in=concerned)
        .select_related("checkpoint")
        .prefetch_related("curve", versions_of_many(), "project__quota", "project__created_by__quota")
    )
    # Without plans: the snapshot has them, and reading thousands again takes as long as planning.
    risks = Job.objects.filter(pk__in=others).only("cluster_id", "state", "at_risk")
    return {job.pk: job for job in (*told, *risks)}


def _decision_row(
    cluster: Cluster,
    pool: Pool,
    gpus: Mapping[int, Gpu],
    decision: CoreDecision,
    final: Collection[str],
    epoch: int,
    reallocated: bool,
    compute_seconds: float,
    trigger: str,
) -> Decision:
    return Decision.objects.create(
        cluster=cluster,
        kind=Decision.Kind.REALLOCATION if reallocated else Decision.Kind.ADMISSION,
        policy=cluster.policy,
        epoch=epoch,
        planning_version=cluster.planning_version,
        trigger=trigger[:200],
        summary={
            "gpu_kind": pool.kind,
            "verdicts": [
                {
                    "job": verdict.job_id,
                    "admitted": verdict.admitted,
                    "promised": verdict.promised,
                    "reason_code": str(verdict.reason_code),
                    "reason": verdict.reason,
                    "final": verdict.job_id in final,
                }
                for verdict in decision.verdicts
            ],
            "changes": [
                {
                    "job": change.job_id,
                    "kind": str(change.kind),
                    "gpus_before": change.gpus_before,
                    "gpus_after": change.gpus_after,
                    "gpus": [str(gpus[address]) for address in change.addresses],
                    "pause_seconds": change.pause_seconds,
                    "reason": change.reason,
                }
                for change in decision.changes
            ],
            "at_risk": list(decision.at_risk),
            "notes": list(decision.notes),
            "used_stored_plans": decision.used_stored_plans,
        },
        snapshot=pack_snapshot(pool.snapshot),
        compute_seconds=compute_seconds,
        code_version=code_version(),
    )


@cache
def code_version() -> str:
    """Return the commit that this process runs, if it runs from a checkout."""
    git = Path(__file__).resolve().parents[3] / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        return (
            (git / head.removeprefix("ref: ")).read_text().strip()[:64]
            if head.startswith("ref: ")
            else head[:64]
        )
    except OSError:
        return ""


def _store_memory(
    cluster: Cluster, kind: str, before: Mapping[str, JobSnapshot], decision: CoreDecision
) -> None:
    """Store the policy's state."""
    if decision.memory or cluster.policy_memory:
        noted = cluster.policy_memory if cluster.policy_memory.get("policy") == cluster.policy else {}
        memory = {**noted, "policy": cluster.policy, kind: list(decision.memory)}
        if memory != cluster.policy_memory:  # most passes change nothing
            cluster.policy_memory = memory
            Cluster.objects.filter(pk=cluster.pk).update(policy_memory=memory)
    changed = {
        job_id: [{"policy": cluster.policy, "values": list(values)}]
        for job_id, values in decision.job_memory.items()
        if values != before[job_id].memory
    }
    update_values(Job, ["policy_memory"], changed)


def _store_plans(
    jobs: Mapping[str, Job],
    before: Mapping[str, JobSnapshot],
    plans: Mapping[str, StoredPlan],
    refused: set[str],
) -> None:
    """Store the plans that differ from the snapshot's, except those of jobs that were refused."""
    changed = {
        job_id: [plan_to_json(plan)]
        for job_id, plan in plans.items()
        if job_id in before and not same_plan(plan, before[job_id].stored_plan)
        and job_id not in refused and not (job_id in jobs and jobs[job_id].finished())
    }  # fmt: skip
    update_values(Job, ["plan"], changed)


_RISK = (JobEventKind.AT_RISK, "No plan meets its deadline any more; it runs on as well as it can.")
_SAFE_AGAIN = ("safe_again", "Its deadline can be met again.")


def _store_risks(jobs: Mapping[str, Job], at_risk: set[str], row: Decision | None) -> None:
    changed = [job for job in jobs.values() if (job.pk in at_risk) != job.at_risk and not job.finished()]
    notes = []
    for job in changed:
        job.at_risk = job.pk in at_risk
        kind, text = _RISK if job.at_risk else _SAFE_AGAIN
        notes.append(JobNote(job, kind, text, {}))
    update_rows(changed, ["at_risk"])
    record_all(notes, decision=row)


def _apply_changes(
    jobs: Mapping[str, Job],
    decision: CoreDecision,
    refused: set[str],
    gpus: Mapping[int, Gpu],
    epoch: int,
    row: Decision | None,
) -> set[str]:
    """Suspend jobs as decided, and create the generations of all others in a few queries.

    Return the jobs that are left unchanged because a server has no free port for them.
    """
    changes = [change for change in decision.changes if change.job_id not in refused]
    live, coming = training_generations([change.job_id for change in changes])
    begun = []
    for change in changes:
        job = jobs[change.job_id]
        if job.finished() or job.pk in coming:
            continue
        if change.kind == ChangeKind.SUSPEND:
            suspend(job, change.reason)
        elif job.pk not in live or live[job.pk].goal == Goal.TRAIN:
            begun.append(change)
    made = create_generations(
        [
            NewGeneration(
                job=jobs[change.job_id],
                gpus=[gpus[address] for address in change.addresses],
                reason=change.reason,
                flexible=decision.flexible.get(change.job_id, ()),
            )
            for change in begun
        ],
        epoch=epoch,
    )
    starting = []
    notes = []
    without_port = set()
    for change, generation in zip(begun, made, strict=True):
        job = jobs[change.job_id]
        if isinstance(generation, NoFreePort):
            # The other jobs proceed; the next pass tries this one again.
            note_no_port(job.cluster, job, generation.message, timezone.now())
            without_port.add(job.pk)
            continue
        if job.pk not in live:
            job.pause_until = timezone.now() + timedelta(seconds=change.pause_seconds)
            starting.append(job)
        after = gpus_text(change.gpus_after)
        text = f"{_WORDS[change.kind]} from {change.gpus_before} to {after}: {change.reason}"
        names = [str(gpus[address]) for address in change.addresses]
        notes.append(JobNote(job, str(change.kind), text, {"generation": generation.number, "gpus": names}))
    update_rows(starting, ["pause_until"])
    record_all(notes, decision=row)
    return without_port


_WORDS = {
    ChangeKind.START: "Starts,",
    ChangeKind.GROW: "Grows",
    ChangeKind.SHRINK: "Shrinks",
    ChangeKind.MIGRATE: "Moves,",
}
