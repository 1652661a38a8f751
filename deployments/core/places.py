"""Placement of replicas: deployments are packed onto few servers, so that whole servers can be lent (Lyra
section 3.2.1 assumes consolidated containers)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


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

    def with_replica(self, gpu: int, deployment: str) -> Home:
        """Return the server with one more replica."""
        free = tuple(other for other in self.free_gpus if other != gpu)
        return Home(self.server, free, self.deployments | {deployment})


@dataclass(frozen=True, slots=True)
class Packing:
    """Where replicas fit.

    Attributes:
        lacking: servers needed in addition. idle: ids of servers that stay without a replica, ascending.
    """

    lacking: int
    idle: tuple[int, ...]


def servers_used(demands: Iterable[float], gpus_per_server: int) -> float:
    """Return how many servers (may be fractional) deployments use if packed as closely as possible.

    Args:
        demands: replicas of each deployment; two of a deployment never share a server.

    Raises ValueError for a negative demand, or servers without a GPU.
    """
    counts = list(demands)
    if any(count < 0 for count in counts):
        raise ValueError(f"demands are {counts}; none can be negative")
    if gpus_per_server < 1:
        raise ValueError(f"gpus_per_server is {gpus_per_server}; it must be at least 1")
    return max(max(counts, default=0.0), sum(counts) / gpus_per_server)


def pack(missing: Mapping[str, int], homes: Collection[Home], gpus_per_server: int) -> Packing:
    """Place missing replicas as steering does; return the servers that lack and those that stay idle.

    Args:
        missing: number of replicas to place, by deployment.
        gpus_per_server: GPUs of an additional server.
    """
    left = {home.server: home for home in homes}
    added = 0
    for deployment, count in missing.items():
        for _ in range(count):
            place = choose_place(deployment, left.values())
            if place is None:
                # No server has a negative id.
                added += 1
                left[-added] = Home(-added, tuple(range(gpus_per_server)))
                place = (-added, 0)
            left[place[0]] = left[place[0]].with_replica(place[1], deployment)
    idle = sorted(server for server, home in left.items() if server >= 0 and not home.deployments)
    return Packing(added, tuple(idle))


def choose_to_vacate(homes: Collection[Home]) -> int | None:
    """Return a server whose replicas fit on other serving servers, so that it could be lent: the one with the
    fewest replicas; ties: the highest id. None if there is none."""
    serving = sorted(
        (home for home in homes if home.deployments), key=lambda home: (len(home.deployments), -home.server)
    )
    for home in serving:
        others = [other for other in serving if other is not home]
        if not pack(dict.fromkeys(sorted(home.deployments), 1), others, 1).lacking:
            return home.server
    return None


def choose_place(deployment: str, homes: Collection[Home]) -> tuple[int, int] | None:
    """Return server and GPU for one more replica, never on a server that has one of the same deployment.

    Servers with the most deployments come first, so that whole servers stay free; ties: the lower id.
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
