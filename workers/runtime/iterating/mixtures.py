"""Mixture-of-experts layers in an iteration: their share of the batch, balance losses and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor, nn

from punctual.moe import LocalExchange, RoutingCounts, balance_loss, moe_layers, routing_counts
from punctual.moe.tables import LocalTableExchange, partitioned_tables, table_blocks
from workers.runtime.function.parts import TrainingParts
from workers.runtime.measuring.mixture_sizes import optimizer_share
from workers.runtime.tiers.usage import TierUsage


class Mixtures:
    """All `MoELayer`s of a model in training."""

    def __init__(self, parts: TrainingParts) -> None:
        self._parts, self._module = parts, parts.module
        self._layers = moe_layers(parts.module)
        self._has_tiers = any(layer.tiers is not None for layer in self._layers.values())
        self._tiers_before = TierUsage()
        self._table_bytes_saved = table_bytes_saved(parts)

    def begin_iteration(self, share: float) -> None:
        """Discard records of passes outside iterations, such as those of an evaluation.

        Args:
            share: this rank's share of the samples of the global batch.
        """
        if not self._layers:
            return
        balance_loss(self._module)
        routing_counts(self._module)
        self._take_counts()
        for layer in self._layers.values():
            layer.records.take_sample_counts()
            if not isinstance(layer.exchange, LocalExchange):
                layer.exchange.share = share

    def with_balance(self, loss: Tensor) -> Tensor:
        """Add the balance losses that the function did not take."""
        return loss + balance_loss(self._module).to(loss) if self._layers else loss

    def take_routing(self) -> RoutingOfIteration:
        """Return how the iteration's tokens were routed."""
        if not self._has_tiers:
            return RoutingOfIteration(self._take_counts(), table_bytes_saved=self._table_bytes_saved)
        before, self._tiers_before = self._tiers_before, self._parts.tier_usage()
        tiers = tuple(self._tiers_before.since(before).values())
        return RoutingOfIteration(self._take_counts(), tiers, table_bytes_saved=self._table_bytes_saved)

    def _take_counts(self) -> list[RoutingCounts]:
        return [layer.records.take_runtime_counts() for layer in self._layers.values()]


@dataclass(frozen=True)
class RoutingOfIteration:
    """The routing of an iteration's tokens.

    Attributes:
        counts: by layer. The balance losses are this rank's until `with_balances`; the rest is the same on
            all ranks.
        tiers: values of `TierUsage`, of this rank until `with_tiers`; empty without tiers.
        workers: number of ranks whose values `tiers` sums up.
        table_bytes_saved: memory of the columns that other ranks hold; None without partitioned tables.
    """

    counts: Sequence[RoutingCounts]
    tiers: Sequence[float] = ()
    workers: int = 1
    table_bytes_saved: float | None = None

    @property
    def balances(self) -> list[float]:
        """This rank's balance losses, by layer."""
        return [each.balance_loss for each in self.counts]

    def with_balances(self, balances: Sequence[float]) -> RoutingOfIteration:
        """Return the same with the balance losses of the global batch, by layer."""
        counts = zip(self.counts, balances, strict=True)
        return replace(self, counts=[replace(one, balance_loss=balance) for one, balance in counts])

    def with_tiers(self, totals: Sequence[float], workers: int) -> RoutingOfIteration:
        """Return the same with the tiers of all ranks together."""
        return replace(self, tiers=totals, workers=workers)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of all layers together; without layer metrics if no layer ran."""
        saved = {} if self.table_bytes_saved is None else {"table_bytes_saved": self.table_bytes_saved}
        ran = [each for each in self.counts if each.tokens]
        if not ran:
            return saved
        rows = sum(int(each.rows.sum()) for each in ran)
        tiers = TierUsage.from_values(self.tiers).metrics(self.workers) if self.tiers else {}
        return (
            saved
            | tiers
            | {
                "moe/balance_loss": sum(each.balance_loss for each in ran) / len(ran),
                "moe/dropped_share": sum(int(each.dropped.sum()) for each in ran) / max(rows, 1),
                "moe/largest_load": max(_largest_load(each) for each in ran),
                "moe/two_expert_share": sum(each.multi_expert_tokens for each in ran)
                / sum(each.tokens for each in ran),
            }
        )


def table_bytes_saved(parts: TrainingParts) -> float | None:
    """Return the bytes of weights, gradients and optimizer states of the columns that other ranks hold; None
    without partitioned tables."""
    names = table_blocks(parts.module).keys()
    if not names:
        return None
    elsewhere = {parts.module.get_parameter(name) for name in names if not parts.experts.is_here(name)}
    size = sum(each.numel() * each.element_size() for each in elsewhere)
    return size * (2.0 + optimizer_share(parts.optimizer)) if size else 0.0


def _largest_load(counts: RoutingCounts) -> float:
    """Return the rows of the most used expert, relative to an even share."""
    return int(counts.rows.max()) * len(counts.rows) / max(int(counts.rows.sum()), 1)


@contextmanager
def without_peers(module: nn.Module) -> Iterator[None]:
    """Let the layers compute on this rank alone, while the others do not run the model."""
    layers, tables = moe_layers(module).values(), partitioned_tables(module).values()
    exchanges = [layer.exchange for layer in layers]
    table_exchanges = [table.exchange for table in tables]
    for layer in layers:
        layer.exchange = LocalExchange()
    for table in tables:
        table.exchange = LocalTableExchange()
    try:
        yield
    finally:
        for layer, exchange in zip(layers, exchanges, strict=True):
            layer.exchange = exchange
        for table, table_exchange in zip(tables, table_exchanges, strict=True):
            table.exchange = table_exchange
