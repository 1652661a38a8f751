"""Which server serves what: deployments are packed onto few servers, so that whole servers can be lent (Lyra
section 3.2.1 assumes consolidated containers)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Home:
    """An inference server at home.

    Attributes:
        server: its id. free_gpus: ids of GPUs without a replica.
        deployments: ids of the deployments that have a replica here.
    """

    server: int
    free_gpus: tuple[int, ...]
    deployments: frozenset[str] = frozenset()


def servers_needed(replicas: Iterable[int], gpus_per_server: int) -> int:
    """Return the fewest servers that hold these numbers of replicas, one number for each deployment.

    A replica takes one GPU, and two replicas of a deployment never share a server. The bound is reached by
    dealing out replicas in turn, deployment by deployment.

    Raises ValueError for a negative number of replicas, or servers without a GPU.
    """
    counts = list(replicas)
    if any(count < 0 for count in counts):
        raise ValueError(f"replicas are {counts}; none can be negative")
    if not counts:
        return 0
    if gpus_per_server < 1:
        raise ValueError(f"gpus_per_server is {gpus_per_server}; it must be at least 1")
    return max(*counts, ceil(sum(counts) / gpus_per_server))


def choose_place(deployment: str, homes: Collection[Home]) -> tuple[int, int] | None:
    """Return server and GPU for one more replica, never on a server that has one of the same deployment.

    Servers that serve most other deployments come first, so that whole servers stay free; ties: the lower id.
    """
    fitting = [home for home in homes if home.free_gpus and deployment not in home.deployments]
    if not fitting:
        return None
    best = min(fitting, key=lambda home: (-len(home.deployments), home.server))
    return best.server, min(best.free_gpus)


def choose_to_drain(replicas: Sequence[tuple[str, int]], other_replicas: Mapping[int, int]) -> str:
    """Return the replica whose end frees a server soonest: on the server with the fewest other replicas.

    Args:
        replicas: key and server of each, oldest first; among equals the newest is returned.
        other_replicas: number by server.

    Raises ValueError if there is none.
    """
    if not replicas:
        raise ValueError("no replica to choose from")
    fewest = min(other_replicas.get(server, 0) for _, server in replicas)
    return next(key for key, server in reversed(replicas) if other_replicas.get(server, 0) == fewest)
