"""Figures of the cluster, for the API's summary and the monitoring system. They identify no person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Min

from cluster.choices import DrainState, ServerState, Whitelist
from cluster.models import Agent, Cluster, Gpu, Server
from cluster.selectors.utilisation import USES
from scheduling.choices import JobState, PromiseOutcome
from scheduling.models import Job, OutboxMessage
from scheduling.selectors.cluster.gpu_uses import count_uses
from scheduling.selectors.jobs import promises


@dataclass(frozen=True, slots=True)
class GpuCounts:
    """GPUs by use and by kind."""

    total: int
    #: Number of GPUs by use.
    by_use: dict[str, int]
    by_kind: Sequence[Mapping[str, object]]


def gpu_counts() -> GpuCounts:
    """Count each GPU that training may use once, by its present use. Inference servers at home do not
    count."""
    gpus = Gpu.objects.for_training()
    by_use = count_uses(gpus)
    by_kind = gpus.order_by("kind", "emulated").values("kind", "emulated").annotate(gpus=Count("pk"))
    return GpuCounts(by_use.total(), {use: by_use[use] for use in USES}, list(by_kind))


def jobs_by_state() -> dict[str, int]:
    """Return the number of all jobs by their present state."""
    counts = dict(Job.objects.values_list("state").annotate(count=Count("pk")).order_by())
    return {state: counts.get(state, 0) for state in JobState.values}


def jobs_by_class_and_state() -> list[tuple[str, str, int]]:
    rows = Job.objects.values_list("service_class", "state").annotate(count=Count("pk")).order_by()
    return list(rows)


def promises_by_outcome() -> dict[str, int]:
    """Return the number of promises by outcome."""
    counts = dict(Job.objects.values_list("promise_outcome").annotate(count=Count("pk")).order_by())
    return {
        outcome: counts.get(outcome, 0) for outcome in PromiseOutcome.values if outcome != PromiseOutcome.NONE
    }


def promises_in_danger() -> dict[str, int]:
    """Return the number of open promises that no plan keeps, and of missed ones whose jobs still run."""
    return {
        "at_risk": Job.objects.filter(promises.AT_RISK).count(),
        "late": Job.objects.filter(promises.LATE).count(),
    }


def servers_by_state() -> dict[str, int]:
    """Return the number of servers that training may use by state; draining ones are also counted
    separately."""
    servers = Server.objects.known().filter(whitelist=Whitelist.TRAINING)
    counts = dict(servers.values_list("state").annotate(count=Count("pk")).order_by())
    known = {state: counts.get(state, 0) for state in ServerState.values if state != ServerState.REMOVED}
    return {**known, "draining": servers.exclude(drain=DrainState.NONE).count()}


def agents_silent_seconds(now: datetime) -> list[tuple[str, float]]:
    """Return (server, seconds since the last report) of agents that are not revoked."""
    agents = Agent.objects.filter(revoked_at__isnull=True).exclude(server__state=ServerState.REMOVED)
    return [(agent.server.name, agent.silent_seconds(now)) for agent in agents.select_related("server")]


@dataclass(frozen=True, slots=True)
class PlannerFacts:
    """State of the planner: its versions, whether its lease is held, and waiting messages."""

    epoch: int
    #: Version of the facts that decisions depend on.
    planning_version: int
    #: Version that the last decision was based on.
    planned_version: int
    replanned_at: datetime | None
    #: Whether a planner holds the lease.
    lease_held: bool
    #: Messages that are not sent yet.
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
