"""The cluster in numbers, for the API's summary and the monitoring system. Counts name nobody."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Min

from cluster.choices import DrainState, ServerState, Whitelist
from cluster.models import Agent, Cluster, Gpu, Server
from scheduling.choices import (
    AssignmentState,
    GenerationState,
    JobState,
    PromiseOutcome,
    Purpose,
    ServiceClass,
)
from scheduling.models import Assignment, Job, OutboxMessage

#: What a GPU can be used for; each GPU counts once.
GPU_USES = ("promised", "soft", "best_effort", "profiling", "changing", "idle", "unavailable")


@dataclass(frozen=True, slots=True)
class GpuCounts:
    """GPUs by use and by kind."""

    total: int
    by_use: dict[str, int]
    by_kind: list[dict[str, object]]


def gpu_counts() -> GpuCounts:
    """Count every GPU that training may use once, by what it is used for now. Inference servers at home do
    not count."""
    gpus = list(
        Gpu.objects.filter(server__whitelist=Whitelist.TRAINING)
        .exclude(server__state=ServerState.REMOVED)
        .values("pk", "kind", "emulated", "healthy", "server__state", "server__drain")
    )
    uses = _uses()
    by_use: Counter[str] = Counter()
    by_kind: Counter[tuple[str, bool]] = Counter()
    for gpu in gpus:
        by_kind[gpu["kind"], gpu["emulated"]] += 1
        out = gpu["server__state"] == ServerState.DOWN or not gpu["healthy"]
        withheld = gpu["server__drain"] != DrainState.NONE and gpu["pk"] not in uses
        by_use["unavailable" if out or withheld else uses.get(gpu["pk"], "idle")] += 1
    kinds = [
        {"kind": kind, "emulated": emulated, "gpus": count}
        for (kind, emulated), count in sorted(by_kind.items())
    ]
    return GpuCounts(len(gpus), {use: by_use[use] for use in GPU_USES}, kinds)


def _uses() -> dict[int, str]:
    uses: dict[int, str] = {}
    held = (
        Assignment.objects.filter(state__in=(AssignmentState.HELD, AssignmentState.CLEARING))
        .select_related("generation", "job")
        .only("gpu_id", "generation__purpose", "generation__state", "job__promised", "job__service_class")
        .order_by("generation__number")
    )
    for assignment in held:
        job = assignment.job
        if assignment.generation.purpose == Purpose.PROFILING:
            use = "profiling"
        elif assignment.generation.state != GenerationState.LIVE:
            use = "changing"
        elif job.promised:
            use = "promised"
        else:
            use = "best_effort" if job.service_class == ServiceClass.BEST_EFFORT else "soft"
        uses[assignment.gpu_id] = use
    return uses


def jobs_by_state() -> dict[str, int]:
    """All jobs ever, by their present state."""
    counts = dict(Job.objects.values_list("state").annotate(count=Count("pk")).order_by())
    return {state: counts.get(state, 0) for state in JobState.values}


def jobs_by_class_and_state() -> list[tuple[str, str, int]]:
    rows = Job.objects.values_list("service_class", "state").annotate(count=Count("pk")).order_by()
    return list(rows)


def promises_by_outcome() -> dict[str, int]:
    """How promises ended, and how many are open."""
    counts = dict(Job.objects.values_list("promise_outcome").annotate(count=Count("pk")).order_by())
    return {
        outcome: counts.get(outcome, 0) for outcome in PromiseOutcome.values if outcome != PromiseOutcome.NONE
    }


def promises_in_danger() -> dict[str, int]:
    """Promised jobs that no plan saves, and unfinished jobs beyond their deadline."""
    unfinished = Job.objects.filter(state__in=("admitted", "running", "suspended"))
    return {
        "at_risk": unfinished.filter(promised=True, at_risk=True).count(),
        "late": unfinished.filter(late=True).count(),
    }


def servers_by_state() -> dict[str, int]:
    """Servers that training may use by state; those being emptied count as draining beside it."""
    servers = Server.objects.filter(whitelist=Whitelist.TRAINING).exclude(state=ServerState.REMOVED)
    counts = dict(servers.values_list("state").annotate(count=Count("pk")).order_by())
    known = {state: counts.get(state, 0) for state in ServerState.values if state != ServerState.REMOVED}
    return {**known, "draining": servers.exclude(drain=DrainState.NONE).count()}


def agents_silent_seconds(now: datetime) -> list[tuple[str, float]]:
    """(server, seconds since the last report) of the agents that are not revoked."""
    agents = Agent.objects.filter(revoked_at__isnull=True).exclude(server__state=ServerState.REMOVED)
    return [(agent.server.name, agent.silent_seconds(now)) for agent in agents.select_related("server")]


@dataclass(frozen=True, slots=True)
class PlannerFacts:
    """How the planner is: what it has planned, whether somebody holds its lease, what waits to be sent."""

    epoch: int
    planning_version: int
    planned_version: int
    replanned_at: datetime | None
    lease_held: bool
    outbox_messages: int
    outbox_oldest_seconds: float


def planner_facts(cluster: Cluster, now: datetime) -> PlannerFacts:
    outbox = OutboxMessage.objects.aggregate(messages=Count("pk"), oldest=Min("created_at"))
    oldest = outbox["oldest"]
    expires_at = cluster.planner_lease_expires_at
    return PlannerFacts(
        epoch=cluster.epoch,
        planning_version=cluster.planning_version,
        planned_version=cluster.planned_version,
        replanned_at=cluster.replanned_at,
        lease_held=expires_at is not None and expires_at > now,
        outbox_messages=outbox["messages"],
        outbox_oldest_seconds=0.0 if oldest is None else (now - oldest).total_seconds(),
    )
