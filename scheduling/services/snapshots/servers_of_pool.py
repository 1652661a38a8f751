"""The servers of a pool in the planner's form and order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf

from cluster.choices import ServerState
from cluster.models import Cluster, Gpu, Server
from projects.prepared import PreparedRows
from scheduling.core.question.snapshot import ServerSnapshot
from scheduling.selectors.recovery.memory_points import waiting_bytes
from scheduling.services.generations.blocking import release_bounds
from scheduling.services.memory.host_memory import gpus_by_server, memory_of_worker
from scheduling.services.rows.borrowed import Borrowed


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


@dataclass(frozen=True)
class ServerOfPool:
    """A server in the planner's form, its row, and the addresses of its GPUs."""

    snapshot: ServerSnapshot
    row: Server
    #: Addresses of its GPUs in the pool.
    addresses: tuple[int, ...]


_OWN = PreparedRows(lambda cluster_id, kind: Gpu.objects.own(cluster_id).filter(kind=kind))
_SERVERS = PreparedRows(lambda server_ids: Server.objects.filter(pk__any_of=server_ids))


def servers_of_pool(
    cluster: Cluster, kind: str, borrowed: Borrowed | None
) -> tuple[list[ServerOfPool], list[Gpu], dict[int, int]]:
    """Return the servers in the planner's order, borrowed ones last; their GPUs; and the address of each GPU
    by primary key.

    Among equally good places the planner takes the first. So servers whose memory holds the state of a job
    that waits for GPUs come first; otherwise the order is topological.
    """
    by_server: dict[int, list[Gpu]] = defaultdict(list)
    for gpu in _OWN.ask(cluster.pk, kind):
        by_server[gpu.server_id].append(gpu)
    # Read once each, instead of with every GPU.
    for server in _SERVERS.ask(list(by_server)):
        for gpu in by_server[server.pk]:
            gpu.server = server
    racks = {number: gpus[0].server.rack for number, gpus in by_server.items()}
    ordered = [by_server[server] for server in holders_first(racks, waiting_bytes(cluster))]
    ordered += [list(gpus) for gpus in borrowed.gpus] if borrowed else []
    all_gpus = gpus_by_server([gpus[0].server_id for gpus in ordered])
    servers: list[ServerOfPool] = []
    flat: list[Gpu] = []
    addresses: dict[int, int] = {}
    for gpus in ordered:
        row = gpus[0].server
        first = len(flat)
        for gpu in sorted(gpus, key=lambda gpu: gpu.index):
            addresses[gpu.pk] = len(flat)
            flat.append(gpu)
        # A suspect server keeps its work but gets no new work: its free GPUs are blocked, its jobs are not
        # moved.
        usable = row.usable() or (row.state == ServerState.SUSPECT and row.open_to_training())
        snapshot = ServerSnapshot(
            id=row.name,
            gpus=len(gpus),
            usable=usable,
            rack=row.rack,
            on_loan=row.on_loan,
            same_kind=row.on_loan and gpus[0].kind == kind,
            ends_at=ends_at(row.available_until, cluster),
            memory_bytes=memory_of_worker(row, all_gpus[row.pk]) * len(gpus),
            standby=row.ready_to_stand_in() and all(gpu.healthy for gpu in gpus),
        )
        servers.append(ServerOfPool(snapshot, row, tuple(range(first, len(flat)))))
    return servers, flat, addresses
