"""Placements of a gang, ranked by the predicted time of its all-to-alls.

score = layers · 4 · (the faster all-to-all) + dense all-reduce + 1 ms for each server of another cluster.
Lower is better. The model prefers one server, then full servers of one cluster, then equal parts, then
unequal parts, which have no rails and exchange flat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from moe.moesys.all_to_all import (
    Algorithm,
    AllToAll,
    LinkRates,
    choose_all_to_all,
    even_pair_bytes,
    uneven_flat_seconds,
)
from moe.moesys.checks import check_at_least, check_not_negative

#: All-to-alls of a layer in a step: two forward, two backward.
EXCHANGES_PER_LAYER = 4
OTHER_CLUSTER_SECONDS = 1e-3
#: With at most this many servers, all subsets are scored.
MAX_ENUMERATED = 12
#: With more servers, only placements that begin with one of the largest clusters are scored.
MAX_FIRST_CLUSTERS = 8


@dataclass(frozen=True, slots=True)
class FreeServer:
    """A server with free GPUs. Servers of one `cluster` share leaf switches.

    Raises:
        ValueError: `free_gpus` is negative.
    """

    id: str
    free_gpus: int
    cluster: str = ""

    def __post_init__(self) -> None:
        check_at_least("free_gpus", self.free_gpus, 0)


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """Traffic of a step.

    Attributes:
        layers: layers with experts.
        dense: parameters whose gradients are all-reduced.

    Raises:
        ValueError: a value is negative, or there is no layer, expert or element.
    """

    layers: int
    tokens_per_rank: float
    experts_per_token: int
    hidden: int
    dense: float = 0.0

    def __post_init__(self) -> None:
        for name in ("layers", "experts_per_token", "hidden"):
            check_at_least(name, getattr(self, name))
        check_not_negative("tokens_per_rank", self.tokens_per_rank)
        check_not_negative("dense", self.dense)


@dataclass(frozen=True, slots=True)
class ScoredPlacement:
    """A placement and its prediction.

    Attributes:
        servers: their ids.
        gpus: on each server.
        clusters: number of clusters of the servers.
        flat_seconds, hierarchical_seconds: one all-to-all; None if parts are unequal.
        score: seconds of a step, with the penalty for other clusters.
        free_after: GPUs that stay free on the servers.
    """

    servers: tuple[str, ...]
    gpus: tuple[int, ...]
    clusters: int
    flat_seconds: float
    hierarchical_seconds: float | None
    algorithm: Algorithm
    score: float
    free_after: int

    @property
    def order(self) -> tuple[float, int, int, int, tuple[str, ...]]:
        """Sort key, best first: score, fewer servers, fewer clusters, fewer GPUs left over, lowest ids."""
        return (self.score, len(self.servers), self.clusters, self.free_after, self.servers)


def score_placement(
    parts: Sequence[tuple[FreeServer, int]], traffic: StepTraffic, rates: LinkRates
) -> ScoredPlacement:
    """Return the score of a number of GPUs on each of some servers.

    Raises:
        ValueError: there is no server, or a server has too few free GPUs.
    """
    check_at_least("servers", len(parts))
    for server, gpus in parts:
        if not 1 <= gpus <= server.free_gpus:
            raise ValueError(f"gpus of {server.id} is {gpus}; it must be from 1 to {server.free_gpus}")
    counts = tuple(gpus for _, gpus in parts)
    flat, hierarchical, algorithm, seconds = _predict_step(counts, traffic, rates)
    by_cluster: dict[str, int] = {}
    for server, _ in parts:
        by_cluster[server.cluster] = by_cluster.get(server.cluster, 0) + 1
    elsewhere = len(parts) - max(by_cluster.values())
    return ScoredPlacement(
        servers=tuple(server.id for server, _ in parts),
        gpus=counts,
        clusters=len(by_cluster),
        flat_seconds=flat,
        hierarchical_seconds=hierarchical,
        algorithm=algorithm,
        score=seconds + OTHER_CLUSTER_SECONDS * elsewhere,
        free_after=sum(server.free_gpus - gpus for server, gpus in parts),
    )


def rank_placements(
    servers: Sequence[FreeServer], gpus: int, traffic: StepTraffic, rates: LinkRates, most: int = 10
) -> tuple[ScoredPlacement, ...]:
    """Return at most `most` placements of `gpus` GPUs, best first; none if too few are free.

    Of up to 12 servers with free GPUs, all subsets are scored. Of more, a few for each number of servers:
    those of the fewest clusters that fit best.

    Raises:
        ValueError: there is no GPU, or two servers have the same id.
    """
    check_at_least("gpus", gpus)
    check_at_least("most", most)
    if len({server.id for server in servers}) != len(servers):
        raise ValueError("servers has an id twice; all ids must differ")
    usable = sorted((server for server in servers if server.free_gpus), key=lambda server: server.id)
    subsets = all_subsets(usable, gpus) if len(usable) <= MAX_ENUMERATED else best_fitting(usable, gpus)
    scored = {placement.servers: placement for placement in score_subsets(subsets, gpus, traffic, rates)}
    return tuple(sorted(scored.values(), key=lambda placement: placement.order)[:most])


def all_reduce_seconds(parts: Sequence[int], dense: float, rates: LinkRates) -> float:
    """Return the time of an all-reduce of half-precision gradients: within servers, between them, within
    them. The server with the fewest GPUs has the fewest network interfaces, and all wait for it.

    Args:
        parts: GPUs on each server.
        dense: number of gradients.
    """
    if dense == 0.0:
        return 0.0
    size, servers, fewest, most = 2.0 * dense, len(parts), min(parts), max(parts)
    within = 2.0 * (most - 1) / most * size / rates.within + 2.0 * (most - 1) * rates.within_latency
    if servers == 1:
        return within
    between = 2.0 * (servers - 1) / servers * size / fewest / rates.leaf
    return within + between + 2.0 * (servers - 1) * rates.between_latency


def score_subsets(
    subsets: Iterable[Sequence[FreeServer]], gpus: int, traffic: StepTraffic, rates: LinkRates
) -> Iterator[ScoredPlacement]:
    """Yield the scores of those subsets that have room."""
    for servers in subsets:
        parts = _divide(servers, gpus)
        if parts is not None:
            yield score_placement(list(zip(servers, parts, strict=True)), traffic, rates)


def all_subsets(servers: Sequence[FreeServer], gpus: int) -> Iterator[Sequence[FreeServer]]:
    """Yield all subsets of at most `gpus` servers."""
    for count in range(1, min(len(servers), gpus) + 1):
        yield from combinations(servers, count)


def best_fitting(servers: Sequence[FreeServer], gpus: int) -> Iterator[Sequence[FreeServer]]:
    """Yield for each number of servers those with room for equal parts that fit best, and those with the most
    room."""
    for count in range(1, min(len(servers), gpus) + 1):
        if gpus % count == 0:
            part = gpus // count
            roomy = [server for server in servers if server.free_gpus >= part]
            yield from _of_few_clusters(roomy, count, lambda server: server.free_gpus)
        yield from _of_few_clusters(servers, count, lambda server: -server.free_gpus)


def _predict_step(
    parts: tuple[int, ...], traffic: StepTraffic, rates: LinkRates
) -> tuple[float, float | None, Algorithm, float]:
    """Return the seconds of a flat and of a hierarchical all-to-all, the choice, and the seconds of a
    step."""
    pair = even_pair_bytes(traffic.tokens_per_rank, traffic.experts_per_token, traffic.hidden, sum(parts))
    dense = all_reduce_seconds(parts, traffic.dense, rates)
    exchanges = EXCHANGES_PER_LAYER * traffic.layers
    if len(set(parts)) > 1:
        flat = uneven_flat_seconds(parts, pair, rates)
        return flat, None, Algorithm.FLAT, exchanges * flat + dense
    choice = choose_all_to_all(AllToAll(len(parts), parts[0], pair), rates)
    seconds = exchanges * choice.seconds + dense
    return choice.flat_seconds, choice.hierarchical_seconds, choice.algorithm, seconds


def _divide(servers: Sequence[FreeServer], gpus: int) -> tuple[int, ...] | None:
    """Return parts as equal as free GPUs allow; None if there are too few."""
    if len(servers) > gpus or sum(server.free_gpus for server in servers) < gpus:
        return None
    parts = [0] * len(servers)
    left = gpus
    by_room = sorted(range(len(servers)), key=lambda index: servers[index].free_gpus)
    for place, index in enumerate(by_room):
        parts[index] = min(servers[index].free_gpus, left // (len(servers) - place))
        left -= parts[index]
    return tuple(parts) if left == 0 and min(parts) else None


def _of_few_clusters(
    servers: Sequence[FreeServer], count: int, order: Callable[[FreeServer], int]
) -> Iterator[Sequence[FreeServer]]:
    """Yield `count` servers beginning with each cluster in turn, the others from the largest clusters."""
    if len(servers) < count:
        return
    by_cluster: dict[str, list[FreeServer]] = {}
    for server in sorted(servers, key=lambda server: (order(server), server.id)):
        by_cluster.setdefault(server.cluster, []).append(server)
    ranked = sorted(by_cluster.values(), key=lambda members: (-len(members), members[0].cluster))
    for first in ranked[:MAX_FIRST_CLUSTERS]:
        rest = [server for members in ranked if members is not first for server in members]
        yield sorted([*first, *rest][:count], key=lambda server: server.id)
