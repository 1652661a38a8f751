"""Starts, drains and ends replicas. Callers hold the cluster's row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F

from cluster.models import Gpu, Server, ServerLink
from deployments.choices import ReplicaState
from deployments.models import Deployment, Replica, Rollout
from deployments.models.replicas import new_replica_key
from scheduling.services.rows.wakeups import wake_agents

#: Reason of a deployment that waits for the place of a replica that its agent is still ending.
PLACE_IS_FREED = "A replica that ended still holds its place; another starts once the place is free."


def is_one_ending(replicas: Collection[Replica]) -> bool:
    """Return whether an agent is still ending one of the replicas."""
    return any(replica.state == ReplicaState.STOPPING for replica in replicas)


def tell_servers(server_ids: Collection[int]) -> dict[int, int]:
    """Raise the desired version of servers and wake their agents; return the versions."""
    if not server_ids:
        return {}
    Server.objects.filter(pk__in=server_ids).update(desired_version=F("desired_version") + 1)
    versions = dict(Server.objects.filter(pk__in=server_ids).values_list("pk", "desired_version"))
    wake_agents(versions)
    return versions


@dataclass(frozen=True)
class GroupMember:
    """A place in a group of servers. `group`: key of its first replica; None for that replica itself."""

    rank: int = 0
    group: str | None = None


def start_replica(
    *,
    deployment: Deployment,
    rollout: Rollout,
    server: Server,
    gpu: Gpu,
    member: GroupMember | None = None,
) -> Replica | None:
    """Start a replica on a free GPU of a server at home; return None if the server has no free port.

    Args:
        member: its place in a group; None for a replica that is alone.
    """
    port, group_port = _take_port(server), None
    if member is not None and member.rank == 0 and port is not None:
        group_port = _take_port(server, also_used=port)
    if port is None or (member is not None and member.rank == 0 and group_port is None):
        return None
    key = new_replica_key()
    version = tell_servers([server.pk])[server.pk]
    return Replica.objects.create(
        key=key,
        group="" if member is None else member.group or key,
        rank=0 if member is None else member.rank,
        group_port=group_port,
        deployment=deployment,
        rollout=rollout,
        server=server,
        gpu=gpu,
        port=port,
        epoch=server.cluster.epoch,
        told_version=version,
    )


def _take_port(server: Server, also_used: int = 0) -> int | None:
    """Return a port of the server's range that no replica, store or measurement uses.

    No training runs on a server at home. Ports are used in rotation, so that none is reused soon.
    """
    present = Replica.objects.filter(server=server).exclude(state=ReplicaState.GONE)
    used = {port for ports in present.values_list("port", "group_port") for port in ports}
    used |= {server.store_port or 0, also_used}
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
    """Let a replica answer until no requests arrive, and then end. One that never served ends at once."""
    if replica.state == ReplicaState.STARTING:
        stop_replica(replica)
    elif replica.state == ReplicaState.SERVING:
        replica.state, replica.draining_at = ReplicaState.DRAINING, now
        replica.save(update_fields=["state", "draining_at"])
        tell_servers([replica.server_id])


def stop_replica(replica: Replica, reason: str = "") -> None:
    """Remove a replica from its server's desired state: the agent then kills its worker."""
    if replica.state in (ReplicaState.STOPPING, ReplicaState.GONE):
        return
    replica.state = ReplicaState.STOPPING
    replica.reason = reason or replica.reason
    replica.untold_version = tell_servers([replica.server_id])[replica.server_id]
    replica.save(update_fields=["state", "reason", "untold_version"])


def mark_gone(replica: Replica, now: datetime, reason: str = "") -> None:
    """Note that a replica's process has ended and its GPU is free."""
    replica.state, replica.gone_at = ReplicaState.GONE, now
    replica.reason = reason or replica.reason
    replica.save(update_fields=["state", "gone_at", "reason"])
