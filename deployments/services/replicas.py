"""Replicas start, drain and end. Callers hold the cluster's row."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db.models import F

from cluster.models import Gpu, Server, ServerLink
from deployments.choices import ReplicaState
from deployments.models import Deployment, Replica, Rollout
from scheduling.services.wakeups import wake_agents


def tell_servers(server_ids: Collection[int]) -> dict[int, int]:
    """Raise the desired version of servers and wake their agents; return the versions."""
    if not server_ids:
        return {}
    Server.objects.filter(pk__in=server_ids).update(desired_version=F("desired_version") + 1)
    versions = dict(Server.objects.filter(pk__in=server_ids).values_list("pk", "desired_version"))
    wake_agents(versions)
    return versions


def start_replica(*, deployment: Deployment, rollout: Rollout, server: Server, gpu: Gpu) -> Replica | None:
    """Start a replica on a free GPU of a server at home; return None if the server has no free port."""
    port = _take_port(server)
    if port is None:
        return None
    version = tell_servers([server.pk])[server.pk]
    return Replica.objects.create(
        deployment=deployment,
        rollout=rollout,
        server=server,
        gpu=gpu,
        port=port,
        epoch=server.cluster.epoch,
        told_version=version,
    )


def _take_port(server: Server) -> int | None:
    """Return a port of the server's range that no replica, store or measurement uses.

    No training runs on a server at home. Ports go round, so that none is reused soon.
    """
    used = set(
        Replica.objects.filter(server=server).exclude(state=ReplicaState.GONE).values_list("port", flat=True)
    )
    used |= {server.store_port or 0}
    answering = ServerLink.objects.filter(second=server, asked_at__isnull=False)
    used |= set(answering.values_list("port", flat=True))
    server.refresh_from_db(fields=["port_next"])
    free = [port for port in range(server.port_first, server.port_last + 1) if port not in used]
    if not free:
        return None
    chosen = next((port for port in free if port >= server.port_next), free[0])
    Server.objects.filter(pk=server.pk).update(port_next=chosen + 1)
    return chosen


def drain_replica(replica: Replica, now: datetime) -> None:
    """Let it answer until no requests arrive, and then end. A replica that never served ends at once."""
    if replica.state == ReplicaState.STARTING:
        stop_replica(replica)
    elif replica.state == ReplicaState.SERVING:
        replica.state, replica.draining_at = ReplicaState.DRAINING, now
        replica.save(update_fields=["state", "draining_at"])
        tell_servers([replica.server_id])


def stop_replica(replica: Replica, reason: str = "") -> None:
    """Remove it from its server's desired state: the agent kills what is left of it."""
    if replica.state in (ReplicaState.STOPPING, ReplicaState.GONE):
        return
    replica.state = ReplicaState.STOPPING
    replica.reason = reason or replica.reason
    replica.untold_version = tell_servers([replica.server_id])[replica.server_id]
    replica.save(update_fields=["state", "reason", "untold_version"])


def mark_gone(replica: Replica, now: datetime, reason: str = "") -> None:
    """Note that its process has ended: its GPU is free."""
    replica.state, replica.gone_at = ReplicaState.GONE, now
    replica.reason = reason or replica.reason
    replica.save(update_fields=["state", "gone_at", "reason"])
