"""Which servers stand by: chosen, put in the place of lost ones, taken into use again.

The pool has so many servers of each kind of GPU. Nothing is planned on them. A lost server and a standby
server change parts: the standby server is planned on, and the lost one belongs to the pool, so that the pool
is full again when it comes back, and nobody has to leave it then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PoolServer:
    """A server of the cluster's own.

    ``kind``: of its GPUs; servers of one kind replace each other. ``whole``: it is heard of, all its GPUs
    work, and it stays. ``lost``: it was given up, or nothing is heard of it and nothing is on it.
    ``promised_gpus``, ``busy_gpus``: GPUs that promised jobs, and any, hold.
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
        """Whether it can take a lost server's place."""
        return self.standby and self.whole and not self.lost


def replaced(servers: Sequence[PoolServer]) -> list[tuple[str, str]]:
    """(lost server, standby server that takes its place), as many as there are.

    The smallest that is as large as the lost one, or else the largest; from another rack if there is one.
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
    """Servers of a kind that may join its pool of ``wanted``, the best first; empty where it has that many.

    Those come first that no promised job is on, then empty ones, large ones, and those of racks that have
    fewest. One whole server at least stays in use.
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
    """Servers that leave the pool because it is to have fewer of their kind; those that are not ready
    first."""
    leaving = []
    for kind in sorted({server.kind for server in servers}):
        there = [server for server in servers if server.standby and server.kind == kind]
        there.sort(key=lambda one: (one.ready, one.id))
        leaving += [server.id for server in there[: max(0, len(there) - wanted)]]
    return leaving


def pool_of(servers: Iterable[PoolServer], wanted: int) -> list[str]:
    """The pool of ``wanted`` servers of each kind while nothing runs yet."""
    known = list(servers)
    for kind in sorted({server.kind for server in known}):
        while able := candidates(known, wanted, kind):
            known[known.index(able[0])] = replace(able[0], standby=True)
    return [server.id for server in known if server.standby]
