"""Communication time of all schemes for sparse tensors, as the paper derives it (Zen 3.2.4, Theorem 3.1).

A formula gives the bytes that the participant with most traffic receives for one tensor; divided by its
bandwidth that is the time, without latency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log2
from types import MappingProxyType

from communication.zen.densification import Densification, Skew
from communication.zen.formats import Format, block_density, relative_size


class Scheme(StrEnum):
    """Schemes for a sparse tensor, in tie-breaking order."""

    DENSE = "dense"
    ZEN = "zen"
    #: Balanced Parallelism as in the theorem, COO both ways.
    BALANCED_COO = "balanced_coo"
    #: Before SparCML: between two workers both send the same, and AGsparse is simpler.
    AGSPARSE = "agsparse"
    SPARCML = "sparcml"
    SPARSE_PS = "sparse_ps"
    SPARSE_PS_TREE = "sparse_ps_tree"
    SPARSE_PS_SCATTER = "sparse_ps_scatter"
    OMNIREDUCE = "omnireduce"


#: The four dimensions of each scheme (Table 3.2): communication, aggregation, partition, balance.
DIMENSIONS: Mapping[Scheme, tuple[str, str, str, str]] = MappingProxyType(
    {
        Scheme.DENSE: ("ring", "incremental", "parallelism", "balanced"),
        Scheme.ZEN: ("point-to-point", "one-shot", "parallelism", "balanced"),
        Scheme.BALANCED_COO: ("point-to-point", "one-shot", "parallelism", "balanced"),
        Scheme.SPARCML: ("hierarchy", "incremental", "centralization", "n/a"),
        Scheme.AGSPARSE: ("any", "one-shot", "centralization", "n/a"),
        Scheme.SPARSE_PS: ("point-to-point", "one-shot", "parallelism", "imbalanced"),
        Scheme.SPARSE_PS_TREE: ("point-to-point, tree", "one-shot", "parallelism", "imbalanced"),
        Scheme.SPARSE_PS_SCATTER: ("point-to-point, ring", "one-shot", "parallelism", "imbalanced"),
        Scheme.OMNIREDUCE: ("point-to-point", "one-shot", "parallelism", "imbalanced"),
    }
)


@dataclass(frozen=True)
class Exchange:
    """The input of the formulas: one tensor among some participants.

    Attributes:
        participants: n, one for each server; each holds the sum of its own workers' gradients.
        dense_bytes: M, of the dense tensor.
        densification: by numbers of workers.
        workers_each: workers whose sum each participant holds.
        skew: with contiguous parts.
        width: values that share one index.
        push_format, pull_format: of Zen.
        push_imbalance, pull_imbalance: of hashed partitions; 1 if they are even.
    """

    participants: int
    dense_bytes: float
    densification: Densification
    workers_each: int = 1
    skew: Skew = Skew()
    width: int = 1
    push_format: Format = Format.COO
    pull_format: Format = Format.HASH_BITMAP
    push_imbalance: float = 1.0
    pull_imbalance: float = 1.0

    def __post_init__(self) -> None:
        if self.participants < 1 or self.workers_each < 1 or self.width < 1:
            raise ValueError(
                f"{self.participants} participants of {self.workers_each} workers, an index for {self.width} "
                "values: there is at least one of each"
            )
        if self.dense_bytes < 0:
            raise ValueError(f"a tensor of {self.dense_bytes} bytes")

    def density(self, participants: float = 1) -> float:
        """Return the density of the sum of ``participants`` participants."""
        return self.densification.after(participants * self.workers_each)

    def fullest(self, participants: int = 1) -> float:
        """Return the density of the fullest contiguous part, one per participant, of such a sum."""
        return min(1.0, self.skew.ratio(self.participants) * self.density(participants))

    def coo(self, density: float) -> float:
        """Return the relative size in COO."""
        return relative_size(Format.COO, density, width=self.width)


def received_bytes(scheme: Scheme, exchange: Exchange) -> float:
    """Return the bytes that the participant with most traffic receives; 0 for a single participant."""
    if exchange.participants == 1:
        return 0.0
    return _RELATIVE[scheme](exchange) * exchange.dense_bytes


def lower_bound_bytes(exchange: Exchange) -> float:
    """Return a lower bound on the received bytes: the sum of all others, without indices."""
    if exchange.participants == 1:
        return 0.0
    return exchange.density(exchange.participants - 1) * exchange.dense_bytes


def calls(scheme: Scheme, participants: int) -> int:
    """Return the collective calls of one exchange, each of which waits for the link's latency.

    Sizes that are not known in advance take a call of their own.
    """
    if participants == 1:
        return 0
    if scheme is Scheme.SPARCML:
        return 2 * ceil(log2(participants))
    return {Scheme.DENSE: 1, Scheme.AGSPARSE: 2}.get(scheme, 4)


def _dense(exchange: Exchange) -> float:
    return 2.0 * _others(exchange)


def _others(exchange: Exchange) -> float:
    return (exchange.participants - 1) / exchange.participants


def _zen(exchange: Exchange) -> float:
    pushed = relative_size(exchange.push_format, exchange.density(), width=exchange.width)
    total = exchange.density(exchange.participants)
    pulled = relative_size(exchange.pull_format, total, width=exchange.width)
    return _others(exchange) * (pushed * exchange.push_imbalance + pulled * exchange.pull_imbalance)


def _balanced_coo(exchange: Exchange) -> float:
    pushed, pulled = exchange.coo(exchange.density()), exchange.coo(exchange.density(exchange.participants))
    return _others(exchange) * (pushed * exchange.push_imbalance + pulled * exchange.pull_imbalance)


def _sparcml(exchange: Exchange) -> float:
    # A number of participants that is not a power of two takes as many stages as the next one.
    stages = ceil(log2(exchange.participants))
    return sum(exchange.coo(exchange.density(2**stage)) for stage in range(stages))


def _agsparse(exchange: Exchange) -> float:
    return (exchange.participants - 1) * exchange.coo(exchange.density())


def _sparse_ps(exchange: Exchange) -> float:
    total = exchange.fullest(exchange.participants)
    return _others(exchange) * (exchange.coo(exchange.fullest()) + exchange.coo(total))


def _sparse_ps_tree(exchange: Exchange) -> float:
    return _with_broadcast(exchange, ceil(log2(exchange.participants)))


def _sparse_ps_scatter(exchange: Exchange) -> float:
    return _with_broadcast(exchange, 2.0 * _others(exchange))


def _with_broadcast(exchange: Exchange, times: float) -> float:
    pulled = exchange.coo(exchange.density(exchange.participants))
    return _others(exchange) * exchange.coo(exchange.fullest()) + times * pulled


def _omnireduce(exchange: Exchange) -> float:
    pushed = block_density(exchange.fullest(), exchange.width)
    return _others(exchange) * (
        pushed + block_density(exchange.fullest(exchange.participants), exchange.width)
    )


_RELATIVE: Mapping[Scheme, Callable[[Exchange], float]] = MappingProxyType(
    {
        Scheme.DENSE: _dense,
        Scheme.ZEN: _zen,
        Scheme.BALANCED_COO: _balanced_coo,
        Scheme.SPARCML: _sparcml,
        Scheme.AGSPARSE: _agsparse,
        Scheme.SPARSE_PS: _sparse_ps,
        Scheme.SPARSE_PS_TREE: _sparse_ps_tree,
        Scheme.SPARSE_PS_SCATTER: _sparse_ps_scatter,
        Scheme.OMNIREDUCE: _omnireduce,
    }
)
