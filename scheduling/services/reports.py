"""What an agent reports, applied: lease, workers, events, progress, logs and freed GPUs.

A report may come twice, late or after a later one. Heartbeats and progress change no planning fact; a changed
phase or an event does, and is applied under the cluster's row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from cluster.choices import LendingState, ServerState
from cluster.models import Agent, Cluster, Server
from scheduling.choices import GenerationState
from scheduling.models import AppliedEvent, Generation, Job, Worker
from scheduling.services.agent_events import apply_event
from scheduling.services.generations import hold_gpus, release_cleared
from scheduling.services.inventory import inventory_update
from scheduling.services.lifecycle import advance
from scheduling.services.progress import store_logs, store_metrics
from scheduling.services.records import lock_cluster, planning_fact_changed
from scheduling.services.wakeups import hint, wake


class Fenced(Exception):
    """The agent's work was given away; it must report an empty list before it gets any again."""


@dataclass(frozen=True)
class ReportAnswer:
    """What the agent learns from its report."""

    lease_seconds: float
    epoch: int
    desired_version: int
    acknowledged: list[str] = field(default_factory=list)


def apply_report(agent: Agent, report: Mapping[str, Any]) -> ReportAnswer:
    """Apply one report and renew the lease.

    Raises:
        Fenced: the agent still has workers of work that was given away.
    """
    now = timezone.now()
    cluster = Cluster.objects.get(pk=agent.server.cluster_id)
    stale = report["boot_id"] == agent.boot_id and report["sequence"] <= agent.sequence
    if not stale:
        _greet(agent, report, cluster, now)
        if report.get("inventory"):
            inventory_update(agent.server, report["inventory"])
        _apply_workers(agent, report["workers"], cluster, now)
        store_metrics(report.get("metrics", []), now)
        store_logs(agent.server_id, report.get("logs", []))
    acknowledged = _apply_events(agent, report.get("events", []), cluster, now)
    server = Server.objects.only("desired_version").get(pk=agent.server_id)
    epoch = Cluster.objects.values_list("epoch", flat=True).get(pk=cluster.pk)
    return ReportAnswer(cluster.fence_seconds, epoch, server.desired_version, acknowledged)


def _greet(agent: Agent, report: Mapping[str, Any], cluster: Cluster, now: datetime) -> None:
    """Renew the lease; bring a silent or fenced server back."""
    with transaction.atomic():
        current = Agent.objects.select_for_update().get(pk=agent.pk)
        alive = [worker for worker in report["workers"] if worker["phase"] != "exited"]
        if current.fenced_at is not None and alive:
            raise Fenced
        returned = current.fenced_at is not None or agent.server.state in (
            ServerState.SUSPECT,
            ServerState.DOWN,
        )
        current.last_report_at = now
        current.boot_id = report["boot_id"]
        current.sequence = report["sequence"]
        current.epoch_seen = report.get("epoch_seen", 0)
        current.desired_version_seen = report.get("desired_version", 0)
        current.fenced_at = None
        current.save()
        agent.refresh_from_db()
    if returned:
        with transaction.atomic():
            lock_cluster(cluster.pk)
            Server.objects.filter(
                pk=agent.server_id, state__in=[ServerState.SUSPECT, ServerState.DOWN]
            ).update(state=ServerState.UP, state_changed_at=now)
            planning_fact_changed(cluster)
            hint(f"cluster:{cluster.pk}", kind="servers")
            wake("plan", trigger=f"server {agent.server.name} is back")


def _apply_workers(agent: Agent, reported: list[Mapping[str, Any]], cluster: Cluster, now: datetime) -> None:
    """Note what changed about this server's workers and advance the jobs concerned."""
    known = {
        (worker.generation.job_id, worker.generation.number, worker.rank): worker
        for worker in Worker.objects.filter(server_id=agent.server_id, gone=False).select_related(
            "generation"
        )
    }
    by_key = {(entry["job"], entry["generation"], entry["rank"]): entry for entry in reported}
    changed = [key for key, entry in by_key.items() if key not in known or known[key].phase != entry["phase"]]
    vanished = [key for key in known if key not in by_key]
    alive = {key for key, entry in by_key.items() if entry["phase"] != "exited"}
    clearing = agent.server.gpus.filter(assignments__state="clearing").exists()
    if not changed and not vanished and not clearing:
        return
    with transaction.atomic():
        lock_cluster(cluster.pk)
        touched: set[str] = set()
        for key in changed:
            touched |= _note_worker(agent, key, by_key[key], now)
        for key in vanished:
            worker = known[key]
            worker.gone = True
            worker.changed_at = now
            worker.save(update_fields=["gone", "changed_at"])
            touched.add(key[0])
        freed_for = release_cleared(agent, alive)
        for job_id in freed_for:
            for generation in Generation.objects.filter(job_id=job_id, held_at=None).exclude(
                state=GenerationState.RETIRED
            ):
                hold_gpus(generation)
        for job in Job.objects.filter(pk__in=touched | freed_for).select_related("checkpoint").order_by("pk"):
            advance(job, cluster)
        if clearing:
            wake("plan", trigger="GPUs were freed")
            if agent.server.lending_state == LendingState.RECLAIMING:
                wake("orchestrate")
            planning_fact_changed(cluster)


def _note_worker(
    agent: Agent, key: tuple[str, int, int], entry: Mapping[str, Any], now: datetime
) -> set[str]:
    job_id, number, rank = key
    generation = Generation.objects.filter(job_id=job_id, number=number).first()
    if generation is None:
        return set()
    Worker.objects.update_or_create(
        generation=generation,
        rank=rank,
        defaults={
            "server_id": agent.server_id,
            "key": entry.get("key", ""),
            "gpu_index": entry["gpu_index"],
            "phase": entry["phase"],
            "exit": entry.get("exit"),
            "changed_at": now,
            "gone": False,
        },
    )
    return {job_id}


def _apply_events(
    agent: Agent, events: list[Mapping[str, Any]], cluster: Cluster, now: datetime
) -> list[str]:
    """Apply each event once, in order. An event of a job that is gone is acknowledged and forgotten."""
    acknowledged = []
    for event in events:
        with transaction.atomic():
            lock_cluster(cluster.pk)
            _, fresh = AppliedEvent.objects.get_or_create(id=event["id"])
            if fresh:
                happened_at = now - timedelta(seconds=float(event.get("age_seconds", 0.0)))
                apply_event(agent, event, cluster, happened_at)
        acknowledged.append(event["id"])
    return acknowledged
