"""Time of an all-to-all, flat or hierarchical, and the choice between them.

The GPUs of a server are linked by NVLink. The network interface of GPU i of every server is on leaf switch i,
its *rail*. Spine switches join the leaves and are slower. In a flat all-to-all every rank sends to every
other. In a hierarchical one, rows move to the right rail inside the server and then cross servers on that
rail: fewer and larger messages and no spine, but more bytes inside the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from moe.moesys.checks import check_at_least, check_not_negative, check_positive

GB = 1e9


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Rates in bytes per second, and latencies of one message in seconds.

    Attributes:
        within: of one GPU to the others of its server (B_nv).
        leaf: of one network interface through its leaf (B_leaf).
        spine: of one network interface through a spine (B_spine).
        within_latency: a_nv.
        between_latency: a_ib.
        oversubscription: of the uplinks of a fat tree, which concurrent senders share. If given, it replaces
            `spine`.

    Raises:
        ValueError: a rate is not above 0, or a latency is negative.
    """

    within: float = 250 * GB
    leaf: float = 25 * GB
    spine: float = 18.75 * GB
    within_latency: float = 2e-6
    between_latency: float = 5e-6
    oversubscription: float | None = None

    def __post_init__(self) -> None:
        for name in ("within", "leaf", "spine"):
            check_positive(name, getattr(self, name))
        check_not_negative("within_latency", self.within_latency)
        check_not_negative("between_latency", self.between_latency)
        if self.oversubscription is not None:
            check_positive("oversubscription", self.oversubscription)


class Algorithm(StrEnum):
    """The algorithm of an all-to-all."""

    FLAT = "flat"
    HIERARCHICAL = "hierarchical"


@dataclass(frozen=True, slots=True)
class AllToAll:
    """An all-to-all among servers with equally many ranks.

    Attributes:
        servers: n.
        ranks_per_server: g.
        pair_bytes: bytes from one rank to one other (m).

    Raises:
        ValueError: there is no server or rank, or bytes are negative.
    """

    servers: int
    ranks_per_server: int
    pair_bytes: float

    def __post_init__(self) -> None:
        check_at_least("servers", self.servers)
        check_at_least("ranks_per_server", self.ranks_per_server)
        check_not_negative("pair_bytes", self.pair_bytes)

    @property
    def ranks(self) -> int:
        """Ranks of all servers (R)."""
        return self.servers * self.ranks_per_server


def flat_seconds(exchange: AllToAll, rates: LinkRates) -> float:
    """Return the time of a flat all-to-all: the longer one of traffic inside and between servers."""
    n, g, m = exchange.servers, exchange.ranks_per_server, exchange.pair_bytes
    within = rates.within_latency * (g - 1) + (g - 1) * m / rates.within
    if n == 1:
        return within
    outside = exchange.ranks - g
    if rates.oversubscription is not None:
        sending = m * outside / rates.leaf * max(1.0, rates.oversubscription * (g - 1) / g)
    else:
        sending = m * outside / g / rates.leaf + m * outside * (g - 1) / g / rates.spine
    return max(within, rates.between_latency * outside + sending)


def hierarchical_seconds(exchange: AllToAll, rates: LinkRates, permute_seconds: float = 0.0) -> float:
    """Return the time of a hierarchical all-to-all: both phases and the permutation between them."""
    n, g, m = exchange.servers, exchange.ranks_per_server, exchange.pair_bytes
    within = rates.within_latency * (g - 1) + (g - 1) * n * m / rates.within
    between = rates.between_latency * (n - 1) + (n - 1) * g * m / rates.leaf
    return within + between + permute_seconds


@dataclass(frozen=True, slots=True)
class AllToAllChoice:
    """Both times, and the chosen algorithm."""

    algorithm: Algorithm
    flat_seconds: float
    hierarchical_seconds: float

    @property
    def seconds(self) -> float:
        """Time of the chosen algorithm."""
        return self.flat_seconds if self.algorithm is Algorithm.FLAT else self.hierarchical_seconds


def choose_all_to_all(exchange: AllToAll, rates: LinkRates, permute_seconds: float = 0.0) -> AllToAllChoice:
    """Choose the faster algorithm; of equals the hierarchical one.

    With one server, or one rank on each, it is flat.
    """
    flat = flat_seconds(exchange, rates)
    hierarchical = hierarchical_seconds(exchange, rates, permute_seconds)
    has_hierarchy = exchange.servers > 1 and exchange.ranks_per_server > 1
    is_faster = has_hierarchy and hierarchical <= flat
    algorithm = Algorithm.HIERARCHICAL if is_faster else Algorithm.FLAT
    return AllToAllChoice(algorithm, flat, hierarchical)


def uneven_flat_seconds(ranks_by_server: tuple[int, ...], pair_bytes: float, rates: LinkRates) -> float:
    """Return the time of a flat all-to-all among servers with unequal numbers of ranks.

    Their rails do not match, so all traffic between servers counts as crossing a spine. The ranks of the
    smallest server send the most to other servers.

    Raises:
        ValueError: a server has no rank, or bytes are negative.
    """
    for ranks in ranks_by_server:
        check_at_least("ranks_by_server", ranks)
    check_not_negative("pair_bytes", pair_bytes)
    most = max(ranks_by_server)
    within = rates.within_latency * (most - 1) + (most - 1) * pair_bytes / rates.within
    if len(ranks_by_server) == 1:
        return within
    outside = sum(ranks_by_server) - min(ranks_by_server)
    spine = rates.spine if rates.oversubscription is None else rates.leaf / max(1.0, rates.oversubscription)
    between = rates.between_latency * outside + pair_bytes * outside / min(rates.leaf, spine)
    return max(within, between)


def even_pair_bytes(tokens_per_rank: float, experts_per_token: int, hidden: int, ranks: int) -> float:
    """Return the bytes from one rank to one other (m) under even routing in half precision.

    Raises:
        ValueError: there is no rank, element or expert, or tokens are negative.
    """
    check_not_negative("tokens_per_rank", tokens_per_rank)
    check_at_least("experts_per_token", experts_per_token)
    check_at_least("hidden", hidden)
    check_at_least("ranks", ranks)
    return tokens_per_rank * experts_per_token * hidden * 2.0 / ranks
