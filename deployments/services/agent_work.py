"""Replicas as work of agents (`scheduling.other_work`).

Every item of a report is checked against its sender: an agent may report replicas on its own server only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from cluster.models import Agent, Server
from deployments.choices import TOLD_STATES, ReplicaState
from deployments.models import Replica
from deployments.models.replicas import LOG_CHARACTERS
from deployments.selectors.desired import desired_replicas
from deployments.services.counts import store_counts
from deployments.services.groups import end_group, is_whole
from deployments.services.records import hint_pages, record
from deployments.services.replicas import mark_gone, stop_replica
from deployments.services.rollouts import replica_declined, replica_failed, replica_served
from punctual.protocol.limits import clean_text
from punctual.protocol.reports import CheckedItem, RefusedItem
from scheduling.services.rows.records import lock_cluster
from scheduling.services.rows.wakeups import wake

MOST_REASON_CHARACTERS = 1000
UNKNOWN = "this server was given no such replica"
#: Phases of a worker that ended without an order.
_ENDED = ("completed", "failed", "exited")


class ServingWork:
    """Replicas on the servers of inference clusters."""

    def desired(self, server: Server) -> Sequence[Mapping[str, Any]]:
        """Return the entries of `GET desired` for one server."""
        return desired_replicas(server.pk) if self.may_run_on(server) else []

    def may_run_on(self, server: Server) -> bool:
        """Return whether the server belongs to an inference cluster."""
        return server.inference_cluster_id is not None

    def needs_bundle(self, server_id: int, digest: str) -> bool:
        """Return whether a replica there runs this function."""
        return _told(server_id).filter(rollout__function_version__bundle=digest).exists()

    def needs_environment(self, server_id: int, digest: str) -> bool:
        """Return whether a replica there needs these requirements."""
        return _told(server_id).filter(rollout__function_version__requirements_digest=digest).exists()

    def take_workers(
        self,
        agent: Agent,
        items: Sequence[CheckedItem],
        *,
        complete: bool,
        desired_version: int,
        now: datetime,
    ) -> list[RefusedItem]:
        """Store changes of the replicas on the agent's server; return the refused items."""
        present = {replica.pk: replica for replica in _present(agent.server_id)}
        refused, listed = [], {}
        for item in items:
            key = item.value["job"]
            problem = _find_mismatch(present.get(key), item.value)
            if problem is None:
                listed[key] = item.value
            elif key in present or not _was_given(agent, key):
                refused.append(RefusedItem("workers", item.index, problem, key))
        changed = [
            key
            for key, replica in present.items()
            if _has_news(replica, listed.get(key), complete=complete, desired_version=desired_version)
        ]
        if changed:
            with transaction.atomic():
                lock_cluster(agent.server.cluster_id)
                for replica in _present(agent.server_id).filter(pk__in=changed):
                    _apply(replica, listed.get(replica.pk), desired_version, now)
            wake("steer_deployments")
        return refused

    def take_event(self, agent: Agent, event: Mapping[str, Any], happened_at: datetime) -> str | None:
        """Store a failure of a replica; return why an event is refused, or None."""
        replica = _given(agent).filter(pk=event["job"]).first()
        if replica is None or replica.rollout.number != event["generation"]:
            return UNKNOWN
        if event["kind"] not in ("failed", "refused"):
            return f"a replica has no event of kind {event['kind']}"
        reason = str(event.get("message") or event.get("reason"))
        if event["kind"] == "failed" and replica.state in TOLD_STATES:
            _fail(replica, reason, happened_at)
        if event["kind"] == "failed" and event["reason"] == "declined":
            replica_declined(replica, clean_text(reason, MOST_REASON_CHARACTERS))
        return None

    def take_counts(self, agent: Agent, items: Sequence[CheckedItem], now: datetime) -> list[RefusedItem]:
        """Store the newest counts of each replica."""
        present = {replica.pk: replica for replica in _present(agent.server_id)}
        refused = []
        for item in items:
            key = item.value["job"]
            problem = _find_mismatch(present.get(key), item.value)
            if problem is None:
                problem = store_counts(present[key], item.value, now)
            elif key not in present and _was_given(agent, key):
                # A late report of a replica that is gone.
                problem = None
            if problem is not None:
                refused.append(RefusedItem("serving", item.index, problem, key))
        return refused

    def take_logs(self, agent: Agent, items: Sequence[CheckedItem]) -> list[RefusedItem]:
        """Keep the newest part of replicas' logs."""
        refused = []
        for item in items:
            entry = item.value
            with transaction.atomic():
                replica = _given(agent).select_for_update(of=("self",)).filter(pk=entry["job"]).first()
                if replica is None:
                    refused.append(RefusedItem("logs", item.index, UNKNOWN, entry["job"]))
                elif entry["offset"] >= replica.log_offset:
                    replica.log = (replica.log + entry["text"])[-LOG_CHARACTERS:]
                    replica.log_offset = entry["offset"] + len(entry["text"].encode())
                    replica.save(update_fields=["log", "log_offset"])
        return refused

    def server_lost(self, server_id: int, now: datetime) -> None:
        """Give up the replicas of a fenced server. The caller holds the cluster's row."""
        lost = list(_present(server_id))
        for replica in lost:
            mark_gone(replica, now, "its server fell silent")
            record(replica.deployment, "server_lost", f"Server {replica.server.name} fell silent.")
            end_group(replica, "it fell silent")
        if lost:
            wake("steer_deployments")


def _told(server_id: int) -> QuerySet[Replica]:
    return Replica.objects.filter(server_id=server_id, state__in=TOLD_STATES)


def _given(agent: Agent) -> QuerySet[Replica]:
    rows = Replica.objects.filter(server_id=agent.server_id)
    return rows.select_related("deployment__inference_cluster", "rollout", "server", "gpu")


def _present(server_id: int) -> QuerySet[Replica]:
    rows = Replica.objects.filter(server_id=server_id).exclude(state=ReplicaState.GONE)
    return rows.select_related("deployment__inference_cluster", "rollout", "server", "gpu")


def _was_given(agent: Agent, key: str) -> bool:
    return Replica.objects.filter(pk=key, server_id=agent.server_id).exists()


def _find_mismatch(replica: Replica | None, entry: Mapping[str, Any]) -> str | None:
    """Return why an entry is not about this replica; None if it is."""
    if replica is None:
        return UNKNOWN
    if (entry["generation"], entry["rank"]) != (replica.rollout.number, replica.rank):
        return f"the replica is rank {replica.rank} of generation {replica.rollout.number}"
    if entry.get("gpu_index", replica.gpu.index) != replica.gpu.index:
        return f"the replica was given GPU {replica.gpu.index}, not {entry['gpu_index']}"
    return None


def _has_news(
    replica: Replica, entry: Mapping[str, Any] | None, *, complete: bool, desired_version: int
) -> bool:
    if entry is not None:
        return bool(entry["phase"] != replica.phase)
    return complete and _has_ended(replica, desired_version)


def _has_ended(replica: Replica, desired_version: int) -> bool:
    """Return whether a replica that the agent does not list has ended.

    A stopping replica has ended once its agent has applied the desired version without it. Any other replica
    has ended if it was listed before: agents start workers one by one, so a new one may not be listed yet.
    """
    if replica.state == ReplicaState.STOPPING:
        return desired_version >= (replica.untold_version or 0)
    return replica.phase != ""


def _apply(replica: Replica, entry: Mapping[str, Any] | None, desired_version: int, now: datetime) -> None:
    """Apply a reported change of one replica, under the cluster's row."""
    if entry is None:
        if _has_ended(replica, desired_version):
            was_needed = replica.state in (ReplicaState.STARTING, ReplicaState.SERVING)
            mark_gone(replica, now)
            if was_needed:
                replica_failed(replica, "its worker vanished", now)
                end_group(replica, "its worker vanished")
        hint_pages(replica.deployment)
        return
    replica.phase = entry["phase"]
    replica.save(update_fields=["phase"])
    if replica.state == ReplicaState.STARTING and replica.phase == "serving":
        replica.state, replica.serving_at = ReplicaState.SERVING, now
        replica.save(update_fields=["state", "serving_at"])
        if is_whole(replica):
            replica_served(replica, now)
    elif replica.phase in _ENDED and replica.state in TOLD_STATES:
        _fail(replica, _how_it_ended(entry), now)
    hint_pages(replica.deployment)


def _fail(replica: Replica, reason: str, now: datetime) -> None:
    """End a replica whose worker ended, and the rest of its group. For a draining one this is no failure."""
    reason = clean_text(reason, MOST_REASON_CHARACTERS)
    if replica.state == ReplicaState.DRAINING:
        stop_replica(replica)
    else:
        stop_replica(replica, reason)
        replica_failed(replica, reason, now)
        end_group(replica, reason)
    wake("steer_deployments")


def _how_it_ended(entry: Mapping[str, Any]) -> str:
    ended = entry.get("exit") or {}
    said = ended.get("message") or ended.get("reason")
    if not said and ended.get("signal"):
        said = f"signal {ended['signal']} ended it"
    return str(said or f"it ended in phase {entry['phase']}")
