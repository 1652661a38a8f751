"""Reports where the tokens of a model's mixture-of-experts layers go, and where its experts live."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from moe.lina.packing import PackingDecision
from punctual.moe import GroupExchange, MoELayer, RoutingCounts, moe_layers
from punctual.names import name_problem
from punctual.protocol import limits
from workers.runtime.connection import AgentConnection
from workers.runtime.measuring.row_times import RowTimes, timing_fields
from workers.runtime.synchronisation.lina import LinaSynchroniser

if TYPE_CHECKING:
    from workers.runtime.iterating.iteration import IterationRunner

_log = logging.getLogger(__name__)

#: The first record comes soon, the others seldom, as the agent keeps each until the control plane has it.
FIRST_SECONDS, USUAL_SECONDS = 1.0, 10.0


class RoutingReports:
    """Sums up the counts of iterations; rank 0 sends them periodically.

    While the agent has not confirmed a record, counts are added to the next one.
    """

    def __init__(
        self,
        module: nn.Module,
        times: RowTimes,
        tell: Callable[[dict[str, Any]], None],
        is_heard: Callable[[], bool] = lambda: True,
        take_decisions: Callable[[], Sequence[PackingDecision]] = lambda: (),
    ) -> None:
        """Begin to count.

        Args:
            tell: takes the fields of an `expert_routing`.
            is_heard: returns whether the agent has confirmed the earlier records.
            take_decisions: returns the packing decisions since its last call.
        """
        self._layers = moe_layers(module)
        self._times, self._tell, self._is_heard = times, tell, is_heard
        self._take_decisions = take_decisions
        self._counts: list[RoutingCounts] = []
        self._iterations = 0
        self._decisions: list[dict[str, Any]] = []
        self._due_at = time.monotonic() + FIRST_SECONDS

    def iteration_done(self, iteration: int, counts: Sequence[RoutingCounts], *, is_last: bool) -> None:
        """Add the counts of all workers in an iteration.

        Args:
            iteration: number of iterations that are done.
            counts: by layer, with the balance losses of the global batch.
            is_last: whether training ends; the remaining counts are then sent.
        """
        known = self._counts
        self._counts = [_sum(*pair) for pair in zip(known, counts, strict=True)] if known else list(counts)
        self._iterations += 1
        decisions = [*self._decisions, *map(asdict, self._take_decisions())]
        self._decisions = decisions[-limits.DECISIONS_OF_A_RECORD :]
        if not is_last and (time.monotonic() < self._due_at or not self._is_heard()):
            return
        fields = self._fields(iteration)
        if fields is not None:
            self._tell(fields)
        self._counts, self._iterations, self._decisions = [], 0, []
        self._due_at = time.monotonic() + USUAL_SECONDS

    def _fields(self, iteration: int) -> dict[str, Any] | None:
        named = dict(zip(self._layers, self._counts, strict=True))
        layers = [
            {
                "name": name,
                "tokens": each.tokens,
                "two_expert_tokens": each.multi_expert_tokens,
                "rows": each.rows.tolist(),
                "dropped": each.dropped.tolist(),
                "balance_loss": each.balance_loss / self._iterations,
                "hosts": hosts_of(self._layers[name]),
            }
            for name, each in reportable(named).items()
        ]
        places = {layer["name"]: place for place, layer in enumerate(layers)}
        fields = {
            "iteration": iteration,
            "iterations": self._iterations,
            "layers": layers,
            "other_layers": len(named) - len(layers),
            "timing": timing_fields(self._times.take(), [places.get(name) for name in named]),
            "decisions": list(self._decisions),
        }
        return _bounded(fields)


def routing_reports(
    runner: IterationRunner, connection: AgentConnection, *, leads: bool
) -> RoutingReports | None:
    """Return the reports to the agent; None for a model without such layers, or if this is not rank 0."""
    module = runner.parts.module
    if not leads or not moe_layers(module):
        return None
    runner.rows.watching = True
    packs = runner.synchronisation.of_kind("lina")
    return RoutingReports(
        module,
        runner.rows,
        lambda fields: connection.event("expert_routing", **fields),
        lambda: connection.is_heard("expert_routing"),
        packs.take_decisions if isinstance(packs, LinaSynchroniser) else lambda: (),
    )


def reportable(counts: Mapping[str, RoutingCounts]) -> dict[str, RoutingCounts]:
    """Return the layers that fit a record: the first ones with few enough experts and a printable name."""
    fitting = {
        name: each
        for name, each in counts.items()
        if len(each.rows) <= limits.EXPERTS_OF_A_LAYER
        and len(name) <= limits.TENSOR_NAME_CHARACTERS
        and (not name or name_problem(name) is None)
    }
    return dict(list(fitting.items())[: limits.MOE_LAYERS_OF_A_MODEL])


def hosts_of(layer: MoELayer) -> list[list[int]] | None:
    """Return the ranks that host each expert, an empty list for all ranks; None above a record's limit."""
    exchange = layer.exchange
    if not isinstance(exchange, GroupExchange):
        return [[] for _ in layer.experts]
    ranks = exchange.placement.ranks
    hosts = [[] if len(each) == ranks else list(each) for each in exchange.placement.hosts]
    return hosts if max(map(len, hosts)) <= limits.HOSTS_OF_AN_EXPERT else None


def _sum(one: RoutingCounts, other: RoutingCounts) -> RoutingCounts:
    """Add counts and balance losses; `_fields` divides the latter by the number of iterations."""
    return replace(
        one,
        tokens=one.tokens + other.tokens,
        multi_expert_tokens=one.multi_expert_tokens + other.multi_expert_tokens,
        rows=one.rows + other.rows,
        dropped=one.dropped + other.dropped,
        balance_loss=one.balance_loss + other.balance_loss,
    )


def _bounded(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return the record, without hosts if they are too many; None if it is still too large or not finite."""
    places = sum(len(hosts) for layer in fields["layers"] for hosts in layer["hosts"] or ())
    if places > limits.PLACES_OF_EXPERTS or not _fits(fields):
        fields = fields | {"layers": [layer | {"hosts": None} for layer in fields["layers"]]}
    return fields if _fits(fields) else None


def _fits(fields: Mapping[str, Any]) -> bool:
    try:
        return len(json.dumps(fields, allow_nan=False)) <= limits.COMMUNICATION_RECORD_BYTES
    except ValueError:
        _log.warning("counts of tokens are not sent: a balance loss is not finite")
        return False
