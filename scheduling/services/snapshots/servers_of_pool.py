"""The servers of a pool in the planner's form and order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime
from math import inf

from cluster.choices import ServerState
from cluster.models import Cluster, Gpu, Server
from projects.prepared import PreparedRows, PreparedValues
from scheduling.core.question.snapshot import ServerSnapshot
from scheduling.selectors.recovery.memory_points import waiting_bytes
from scheduling.services.generations.blocking import release_bounds
from scheduling.services.memory.host_memory import gpus_by_server, memory_of_worker
from scheduling.services.rows.borrowed import Borrowed
from scheduling.services.rows.claims import GpuOfPool


def ends_at(available_until: datetime | None, cluster: Cluster) -> float:
    """Return until when work may be planned on a server with this end, in Unix seconds; infinity without an
    end.

    This leaves time for its work to move: a successor prepares and takes over, or the job is suspended, and
    the agent confirms that its workers are gone.
    """
    if available_until is None:
        return inf
    bounds = release_bounds(cluster)
    leaving_seconds = cluster.prepare_timeout_seconds + bounds.handover_seconds + bounds.suspending_seconds
    return available_until.timestamp() - leaving_seconds


def holders_first(racks: Mapping[int, str], held_bytes: Mapping[int, int]) -> list[int]:
    """Return servers in topology order, rack by rack, but servers with more held bytes first, and racks
    likewise.

    Args:
        racks: rack of each server, by primary key.
    """
    in_rack = Counter[str]()
    for server, rack in racks.items():
        in_rack[rack] += held_bytes.get(server, 0)

    def place(server: int) -> tuple[int, str, int, int]:
        rack = racks[server]
        return -in_rack[rack], rack, -held_bytes.get(server, 0), server

    return sorted(racks, key=place)


_OWN = PreparedValues(
    lambda cluster_id, kind: (
        Gpu.objects.own(cluster_id)
        .filter(kind=kind)
        .order_by("server_id", "index")
        .values_list("pk", "server_id", "healthy", "kind")
    )
)
_SERVERS = PreparedRows(lambda server_ids: Server.objects.filter(pk__any_of=server_ids))


def servers_of_pool(
    cluster: Cluster, kind: str, borrowed: Borrowed | None
) -> tuple[list[ServerSnapshot], list[GpuOfPool]]:
    """Return the servers in the planner's order, borrowed ones last, and their GPUs by address.

    Among equally good places the planner takes the first. So servers whose memory holds the state of a job
    that waits for GPUs come first; otherwise the order is topological.
    """
    by_server: dict[int, list[GpuOfPool]] = defaultdict(list)
    for gpu in map(GpuOfPool._make, _OWN.ask(cluster.pk, kind)):
        by_server[gpu.server_id].append(gpu)
    rows = {server.pk: server for server in _SERVERS.ask(list(by_server))}
    racks = {server_id: rows[server_id].rack for server_id in by_server}
    ordered = holders_first(racks, waiting_bytes(cluster))
    for lent in borrowed.gpus if borrowed else ():
        server = lent[0].server
        rows[server.pk] = server
        by_server[server.pk] = [GpuOfPool(row.pk, row.server_id, row.healthy, row.kind) for row in lent]
        ordered.append(server.pk)
    all_gpus = gpus_by_server(ordered)
    same_kind = borrowed is not None and borrowed.kind == kind
    servers: list[ServerSnapshot] = []
    flat: list[GpuOfPool] = []
    for server_id in ordered:
        gpus = by_server[server_id]
        flat += gpus
        row = rows[server_id]
        # A suspect server keeps its work but gets no new work: its free GPUs are blocked, its jobs are not
        # moved.
        usable = row.usable() or (row.state == ServerState.SUSPECT and row.open_to_training())
        snapshot = ServerSnapshot(
            id=row.name,
            gpus=len(gpus),
            usable=usable,
            rack=row.rack,
            on_loan=row.on_loan,
            same_kind=row.on_loan and same_kind,
            ends_at=ends_at(row.available_until, cluster),
            memory_bytes=memory_of_worker(row, all_gpus[row.pk]) * len(gpus),
            standby=row.ready_to_stand_in() and all(gpu.healthy for gpu in gpus),
        )
        servers.append(snapshot)
    return servers, flat
