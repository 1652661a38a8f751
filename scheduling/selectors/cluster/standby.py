"""Standby servers: which exist, which are ready, and how many the rule suggests."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from django.db.models import Count, Q

from cluster.choices import DrainState, ServerState
from cluster.models import Cluster, Gpu, Server
from recovery.placement.standby import PoolServer
from recovery.probability.standby import ACCEPTED_RISK, standby_servers
from scheduling.choices import AssignmentState
from scheduling.models import Assignment


@dataclass(frozen=True, slots=True)
class StandbyPool:
    """The standby servers for one kind of GPU.

    ``servers``: number of the cluster's own servers of this kind, including standby servers. ``ready``: names
    of those that can replace a lost server now; ``away``: names of those in the pool that cannot.
    ``advised``: the rule's number. ``note``: what is wrong; empty if nothing is.
    """

    gpu_kind: str
    servers: int
    #: Configured number of standby servers.
    wanted: int
    ready: tuple[str, ...]
    away: tuple[str, ...]
    advised: int
    note: str


@dataclass(frozen=True, slots=True)
class Standby:
    """The pools of a cluster, and the rule's inputs."""

    standby_servers: int
    failures_per_server_day: float
    replacement_seconds: float
    accepted_risk: float
    pools: tuple[StandbyPool, ...]


def pool_servers(cluster: Cluster) -> list[PoolServer]:
    """Return the cluster's own servers with GPUs, in the form in which standby servers are chosen."""
    own = Server.objects.filter(cluster=cluster, inference_cluster__isnull=True)
    servers = list(own.known().order_by("name"))
    kinds: defaultdict[int, list[str]] = defaultdict(list)
    sound: dict[int, bool] = {}
    for server_id, kind, healthy in Gpu.objects.filter(server__in=servers).values_list(
        "server_id", "kind", "healthy"
    ):
        kinds[server_id].append(kind)
        sound[server_id] = sound.get(server_id, True) and healthy
    promised, busy = _held(cluster)
    return [
        PoolServer(
            id=server.name,
            gpus=len(kinds[server.pk]),
            kind=", ".join(sorted(set(kinds[server.pk]))),
            rack=server.rack,
            standby=server.standby,
            whole=server.state == ServerState.UP and sound[server.pk] and _stays(server),
            lost=_stays(server) and _lost(server, busy[server.pk]),
            promised_gpus=promised[server.pk],
            busy_gpus=busy[server.pk],
        )
        for server in servers
        if server.pk in kinds
    ]


def standby_of(cluster: Cluster) -> Standby:
    """Return the present pools of the cluster."""
    servers = pool_servers(cluster)
    kinds = sorted({server.kind for server in servers})
    return Standby(
        cluster.standby_servers,
        cluster.failures_per_server_day,
        cluster.replacement_seconds,
        ACCEPTED_RISK,
        tuple(_pool(cluster, [one for one in servers if one.kind == kind], kind) for kind in kinds),
    )


def _pool(cluster: Cluster, servers: list[PoolServer], kind: str) -> StandbyPool:
    members = [server for server in servers if server.standby]
    ready = tuple(server.id for server in members if server.ready)
    away = tuple(server.id for server in members if not server.ready)
    wanted = cluster.standby_servers
    return StandbyPool(
        gpu_kind=kind,
        servers=len(servers),
        wanted=wanted,
        ready=ready,
        away=away,
        advised=standby_servers(
            len(servers),
            failures_a_day=cluster.failures_per_server_day,
            replacement_seconds=cluster.replacement_seconds,
        ),
        note=_note(cluster, servers, len(ready), away),
    )


def _note(cluster: Cluster, servers: list[PoolServer], ready: int, away: tuple[str, ...]) -> str:
    wanted = cluster.standby_servers
    if ready >= wanted:
        return ""
    parts = [f"{ready} of {wanted} standby servers {'is' if ready == 1 else 'are'} ready."]
    if away:
        parts.append(f"Not here: {', '.join(away)}; the pool is full again when back.")
    if wanted > ready + len(away):
        in_use = sum(server.whole and not server.standby for server in servers)
        if in_use < 2:
            parts.append("The last whole server of this kind stays in use.")
        else:
            parts.append(cluster.standby_obstacle or "A server is being chosen.")
    return " ".join(parts)


def _stays(server: Server) -> bool:
    return server.drain == DrainState.NONE and server.available_until is None


def _lost(server: Server, busy_gpus: int) -> bool:
    """Return whether another server may replace it: it was given up, or it is silent and its GPUs are not
    held."""
    return server.state == ServerState.DOWN or (server.state == ServerState.SUSPECT and not busy_gpus)


def _held(cluster: Cluster) -> tuple[Counter[int], Counter[int]]:
    """Return the numbers of GPUs by server that promised jobs hold, and that any job holds."""
    held = Assignment.objects.filter(job__cluster=cluster).exclude(state=AssignmentState.RELEASED)
    rows = held.order_by().values_list("gpu__server_id")
    counted = rows.annotate(
        any=Count("gpu", distinct=True), promised=Count("gpu", distinct=True, filter=Q(job__promised=True))
    )
    promised: Counter[int] = Counter()
    busy: Counter[int] = Counter()
    for server_id, in_all, of_promised in counted:
        busy[server_id], promised[server_id] = in_all, of_promised
    return promised, busy
