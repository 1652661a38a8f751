"""The pool of standby servers: selection, replacement of lost servers, and return to use.

The pool has a number of servers of each GPU kind on which nothing is planned. A lost server and a standby
server swap roles: the standby server becomes usable, and the lost one joins the pool. When the lost one comes
back, the pool is full again, and no job has to move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PoolServer:
    """A server that the cluster owns.

    ``kind``: of its GPUs; servers of one kind replace each other. ``standby``: whether it is in the pool.
    ``whole``: it reports, all its GPUs work, and it is not leaving. ``lost``: it was given up, or it is
    silent and empty. ``promised_gpus``, ``busy_gpus``: GPUs held by promised jobs, and by any job.
    """

    id: str
    gpus: int
    kind: str = ""
    rack: str = ""
    standby: bool = False
    whole: bool = True
    lost: bool = False
    promised_gpus: int = 0
    busy_gpus: int = 0

    @property
    def ready(self) -> bool:
        """Whether it can replace a lost server."""
        return self.standby and self.whole and not self.lost


def replaced(servers: Sequence[PoolServer]) -> list[tuple[str, str]]:
    """Return pairs (lost server, standby server that replaces it), while standby servers last.

    Prefer the smallest that is as large as the lost one, else the largest; then one from another rack.
    """
    ready = [server for server in servers if server.ready]
    pairs = []
    for lost in sorted((one for one in servers if one.lost and not one.standby), key=lambda one: one.id):
        able = [one for one in ready if one.kind == lost.kind]
        if not able:
            continue
        taken = min(
            able,
            key=lambda one: (
                one.gpus < lost.gpus, abs(one.gpus - lost.gpus),
                bool(one.rack) and one.rack == lost.rack, one.id,
            ),
        )  # fmt: skip
        ready.remove(taken)
        pairs.append((lost.id, taken.id))
    return pairs


def candidates(servers: Sequence[PoolServer], wanted: int, kind: str) -> list[PoolServer]:
    """Return the servers of a kind that may join its pool of ``wanted``, best first; empty if it is full.

    Servers without promised jobs come first, then empty ones, large ones, and those from racks with fewest
    standby servers. At least one whole server stays in use.
    """
    own = [server for server in servers if server.kind == kind]
    in_use = [server for server in own if not server.standby and server.whole and not server.lost]
    if sum(server.standby for server in own) >= wanted or len(in_use) < 2:
        return []
    there = Counter(server.rack for server in own if server.standby)
    return sorted(
        in_use,
        key=lambda one: (
            one.promised_gpus > 0, one.busy_gpus > 0, -one.gpus, there[one.rack],
            one.promised_gpus, one.busy_gpus, one.id,
        ),
    )  # fmt: skip


def surplus(servers: Sequence[PoolServer], wanted: int) -> list[str]:
    """Return the servers that leave the pool because it holds more than ``wanted`` of their kind; those not
    ready first."""
    leaving = []
    for kind in sorted({server.kind for server in servers}):
        there = [server for server in servers if server.standby and server.kind == kind]
        there.sort(key=lambda one: (one.ready, one.id))
        leaving += [server.id for server in there[: max(0, len(there) - wanted)]]
    return leaving


def pool_of(servers: Iterable[PoolServer], wanted: int) -> list[str]:
    """Return the initial pool, ``wanted`` servers of each kind, while nothing runs yet."""
    known = list(servers)
    for kind in sorted({server.kind for server in known}):
        while able := candidates(known, wanted, kind):
            known[known.index(able[0])] = replace(able[0], standby=True)
    return [server.id for server in known if server.standby]
