"""Applies an agent's report: lease, workers, events, progress, logs and freed GPUs.

A report may come twice, late or after a later one. Heartbeats and progress change no planning fact. A changed
phase or an event does, and is applied under the cluster's row.

User code determines part of a report. So the lease is renewed first, whatever the rest of the report holds.
Each item is checked separately and must belong to work of the sender's server. An item that cannot be applied
is dropped with a note after one attempt. A part that only waits for a locked row is deferred, and the agent
sends it again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from cluster.choices import ServerState
from cluster.models import Agent, Cluster, Server
from projects.prepared import PreparedRows, PreparedValues
from punctual.protocol.links import LinkProbeResult, LoadOfLinks
from punctual.protocol.memory import StoreReport
from punctual.protocol.reports import CheckedItem, Inventory, RefusedItem, check, check_items
from scheduling.models import AppliedEvent
from scheduling.other_work import is_other_key, of_jobs, of_other_work, registered
from scheduling.services.agents import lease_clock
from scheduling.services.agents.agent_events import apply_event
from scheduling.services.agents.inventory import inventory_update
from scheduling.services.agents.link_probes import take_measurement
from scheduling.services.agents.reported_workers import (
    ReportedWorkers,
    apply_workers,
    changes_of_workers,
    own_workers,
)
from scheduling.services.agents.standby import replace_lost
from scheduling.services.generations.memory_points import take_store_report
from scheduling.services.generations.progress import store_logs, store_metrics
from scheduling.services.rows.records import lock_cluster, planning_fact_changed, read_cluster
from scheduling.services.rows.report_refusals import TOLD_ITEMS, RefusedEvent, note_refusals
from scheduling.services.rows.wakeups import hint, wake

log = structlog.get_logger(__name__)

#: How long a part of a report waits for locked rows, as a share of the lease. An agent waits a quarter of the
#: lease for its answer.
LOCK_SHARE_OF_LEASE = 0.04
LONGEST_LOCK_WAIT_SECONDS = 2.0


class Fenced(Exception):
    """The agent's work was given away. It must report an empty list before it receives new work."""


@dataclass(frozen=True)
class ReportAnswer:
    """Answer to an agent's report.

    Attributes:
        acknowledged: ids of settled events: applied, or refused for good.
        refused: dropped items, with reasons.
        deferred: parts of the report that could not be applied now; the agent sends them again.
    """

    lease_seconds: float
    epoch: int
    #: Version of the server's desired state.
    desired_version: int
    acknowledged: list[str] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    deferred: list[str] = field(default_factory=list)


@dataclass
class _Applying:
    """A report that is being applied."""

    agent: Agent
    cluster: Cluster
    now: datetime
    #: Items that were rejected, with reasons.
    refused: list[RefusedItem] = field(default_factory=list)
    deferred: list[str] = field(default_factory=list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Apply one part. An error in it affects neither other parts nor the lease."""
        try:
            with self.bounded_waiting():
                yield
        except OperationalError as error:
            log.warning(
                "part of a report deferred", server=self.agent.server.name, part=name, error=str(error)
            )
            self.deferred.append(name)
        except Exception:
            log.exception("part of a report failed", server=self.agent.server.name, part=name)
            self.refused.append(
                RefusedItem(name, 0, "it cannot be applied; the control plane's log says why")
            )

    @contextmanager
    def bounded_waiting(self) -> Iterator[None]:
        """Open a transaction that waits for locked rows no longer than an agent waits for its answer."""
        seconds = min(LONGEST_LOCK_WAIT_SECONDS, self.cluster.fence_seconds * LOCK_SHARE_OF_LEASE)
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT set_config('lock_timeout', %s, true)", [f"{max(1, int(seconds * 1000))}ms"]
                )
            yield


def renew_lease(agent: Agent) -> float:
    """Renew the lease of an agent whose report cannot be read. Return its length in seconds.

    Raises:
        Fenced: the agent's work was given away.
    """
    with transaction.atomic():
        current = Agent.objects.select_for_update().get(pk=agent.pk)
        if current.fenced_at is not None:
            raise Fenced
        Agent.objects.filter(pk=agent.pk).update(last_report_at=lease_clock.now())
    return float(Cluster.objects.values_list("fence_seconds", flat=True).get(pk=agent.server.cluster_id))


def apply_report(agent: Agent, report: Mapping[str, Any]) -> ReportAnswer:
    """Apply one report and renew the lease. The envelope has been checked, the items have not.

    Raises:
        Fenced: the agent still has workers of work that was given away.
    """
    cluster = read_cluster(agent.server.cluster_id)
    applying = _Applying(agent, cluster, timezone.now())
    stale = report["boot_id"] == agent.boot_id and report["sequence"] <= agent.sequence
    if not stale:
        entries, malformed = check_items("workers", report["workers"])
        workers, strange = own_workers(agent, of_jobs(entries), malformed)
        applying.refused += [*malformed, *strange]
        others = of_other_work(entries)
        others_alive = any(item.value["phase"] != "exited" for item in others)
        agent, returned = _greet(agent, report, workers.any_alive or others_alive)
        applying.agent = agent
        if returned:
            with applying.part("workers"):
                _bring_back(agent, cluster, applying.now)
        _apply_state(applying, report, workers)
        _apply_progress(applying, report)
    acknowledged = _apply_events(applying, report.get("events", []))
    if not stale:
        # After the events, which tell why a worker ended.
        _apply_other_work(applying, report, others, complete=not malformed)
    if applying.refused:
        with applying.part("refusals"):
            note_refusals(agent, applying.refused)
    ((epoch, desired_version),) = _TOLD.ask(agent.server_id)
    return ReportAnswer(
        cluster.fence_seconds,
        epoch,
        desired_version,
        acknowledged,
        [item.to_json() for item in applying.refused[:TOLD_ITEMS]],
        applying.deferred,
    )


_TOLD = PreparedValues(
    lambda server_id: Server.objects.filter(pk=server_id).values_list("cluster__epoch", "desired_version")
)
_REPORTING = PreparedRows(lambda agent_id: Agent.objects.select_related("server").filter(pk=agent_id))


def _greet(known: Agent, report: Mapping[str, Any], alive: bool) -> tuple[Agent, bool]:
    """Read the agent and its server again and renew the lease. Return the agent, and whether its server was
    silent or fenced before.
    """
    while True:
        agent = _REPORTING.get(known.pk)
        if agent.fenced_at is not None and alive:
            raise Fenced
        told = {
            "boot_id": report["boot_id"],
            "sequence": report["sequence"],
            "epoch_seen": report.get("epoch_seen", 0),
            # An agent cannot have applied a version that does not exist yet.
            "desired_version_seen": min(report.get("desired_version", 0), agent.server.desired_version),
        }
        # One statement instead of a lock: unless the agent is fenced between, it is as it was read.
        unfenced = Agent.objects.filter(pk=agent.pk, fenced_at=agent.fenced_at)
        if unfenced.update(**told, last_report_at=lease_clock.clock(), fenced_at=None):
            break
    silent = agent.server.state in (ServerState.SUSPECT, ServerState.DOWN)
    returned = agent.fenced_at is not None or silent
    for name, value in told.items():
        setattr(agent, name, value)
    agent.fenced_at = None
    return agent, returned


def _bring_back(agent: Agent, cluster: Cluster, now: datetime) -> None:
    """Allow new work on the server again."""
    lock_cluster(cluster.pk)
    Server.objects.filter(pk=agent.server_id, state__in=[ServerState.SUSPECT, ServerState.DOWN]).update(
        state=ServerState.UP, state_changed_at=now
    )
    replace_lost(cluster)
    planning_fact_changed(cluster)
    hint(f"cluster:{cluster.pk}", kind="servers")
    wake("plan", trigger=f"server {agent.server.name} is back")


def _apply_state(applying: _Applying, report: Mapping[str, Any], workers: ReportedWorkers) -> None:
    """Apply the inventory, link measurements, memory store and workers."""
    agent = applying.agent
    if report.get("inventory"):
        inventory, problem = check(Inventory, report["inventory"])
        if inventory is None:
            applying.refused.append(RefusedItem("inventory", 0, problem))
        else:
            with applying.part("inventory"):
                inventory_update(agent.server, inventory)
    if report.get("link_load") is not None:
        load, problem = check(LoadOfLinks, report)
        if load is None:
            applying.refused.append(RefusedItem("link_load", 0, problem))
        elif load["link_load"] != agent.link_load:  # an idle server reports the same load each second
            with applying.part("link_load"):
                Agent.objects.filter(pk=agent.pk).update(link_load=load["link_load"])
    if report.get("link_probe") is not None:
        found, problem = check(LinkProbeResult, report["link_probe"])
        with applying.part("link_probe"):
            problem = problem if found is None else take_measurement(agent, found, applying.now)
            if problem:
                applying.refused.append(RefusedItem("link_probe", 0, problem))
    if report.get("memory_store") is not None:
        # Before the workers: their losses are judged by what the stores still hold.
        store, problem = check(StoreReport, report["memory_store"])
        if store is None:
            applying.refused.append(RefusedItem("memory_store", 0, problem))
        elif store != agent.memory_store:  # an empty store reports the same each second
            with applying.part("memory_store"):
                applying.refused += take_store_report(agent, store, applying.now)
    if changes := changes_of_workers(agent, workers):  # mostly none, and no transaction
        with applying.part("workers"):
            apply_workers(agent, changes, applying.cluster, applying.now)


def _apply_other_work(
    applying: _Applying, report: Mapping[str, Any], others: Sequence[CheckedItem], *, complete: bool
) -> None:
    """Apply workers and counts of other work."""
    agent, now = applying.agent, applying.now
    counts, malformed = check_items("serving", report.get("serving", []))
    applying.refused += malformed
    for work in registered():
        if not (others or counts or work.may_run_on(agent.server)):
            continue
        with applying.part("workers"):
            applying.refused += work.take_workers(
                agent, others, complete=complete, desired_version=agent.desired_version_seen, now=now
            )
        if counts:
            with applying.part("serving"):
                applying.refused += work.take_counts(agent, counts, now)


def _apply_progress(applying: _Applying, report: Mapping[str, Any]) -> None:
    """Store metrics and logs, job by job."""
    stores: dict[str, Callable[[list[CheckedItem]], list[RefusedItem]]] = {
        "metrics": lambda items: store_metrics(applying.agent.server_id, items, applying.now),
        "logs": lambda items: store_logs(applying.agent.server_id, items),
    }
    for part, store in stores.items():
        found, malformed = check_items(part, report.get(part, []))
        applying.refused += malformed
        items = of_jobs(found)
        if part == "logs" and len(items) < len(found):
            for work in registered():
                with applying.part(part):
                    applying.refused += work.take_logs(applying.agent, of_other_work(found))
        by_job: dict[str, list[CheckedItem]] = {}
        for item in items:
            by_job.setdefault(item.value["job"], []).append(item)
        for of_one_job in by_job.values():
            if part not in applying.deferred:
                with applying.part(part):
                    applying.refused += store(of_one_job)


def _apply_events(applying: _Applying, events: list[Any]) -> list[str]:
    """Apply each event once, in order. Return the ids of settled events."""
    items, malformed = check_items("events", events)
    applying.refused += malformed
    settled = [item.id for item in malformed if item.id is not None]
    for item in items:
        event = item.value
        reason = _apply_one(applying, event)
        if "events" in applying.deferred:
            break
        if reason is not None:
            applying.refused.append(RefusedItem("events", item.index, reason, event["job"], event["id"]))
        settled.append(event["id"])
    return settled


def _apply_one(applying: _Applying, event: Mapping[str, Any]) -> str | None:
    """Apply an event unless it was applied before. Return why it is refused, or None."""
    reason: str | None = None
    # Agents choose their events' ids, so the key includes the server: another agent's event is not a
    # repetition.
    known_as = uuid.uuid5(uuid.UUID(event["id"]), str(applying.agent.server_id))
    try:
        with applying.bounded_waiting():
            lock_cluster(applying.cluster.pk)
            _, fresh = AppliedEvent.objects.get_or_create(id=known_as)
            if fresh:
                happened_at = applying.now - timedelta(seconds=event["age_seconds"])
                if is_other_key(event["job"]):
                    _apply_other_event(applying.agent, event, happened_at)
                else:
                    apply_event(applying.agent, event, applying.cluster, happened_at)
    except OperationalError as error:
        log.warning("event deferred", server=applying.agent.server.name, id=event["id"], error=str(error))
        applying.deferred.append("events")
        return None
    except RefusedEvent as error:
        reason = str(error)
    except Exception:
        log.exception("event failed", server=applying.agent.server.name, id=event["id"], kind=event["kind"])
        reason = f"{event['kind']} cannot be applied; the control plane's log says why"
    if reason is not None:
        AppliedEvent.objects.get_or_create(id=known_as)
    return reason


def _apply_other_event(agent: Agent, event: Mapping[str, Any], happened_at: datetime) -> None:
    """Offer the event to each kind of other work.

    Raises:
        RefusedEvent: no kind of work takes it.
    """
    problem: str | None = "this server was given no such work"
    for work in registered():
        problem = work.take_event(agent, event, happened_at)
        if problem is None:
            return
    raise RefusedEvent(problem or "")
