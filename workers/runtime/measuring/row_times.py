"""Times of expert rows' all-to-alls in an iteration, as seen by one rank."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any

import torch
from torch import nn

from moe.moesys.all_to_all import Algorithm, AllToAllChoice
from punctual.moe import GroupExchange, moe_layers
from punctual.moe.group_exchange import untimed
from punctual.protocol import limits
from workers.runtime.emulation.emulated_network import EmulatedGroup
from workers.runtime.emulation.pace import Pace
from workers.runtime.lina.communication import Pending
from workers.runtime.lina.exchange import PipelinedExchange
from workers.runtime.synchronisation.hierarchical_exchange import HierarchicalExchange

#: Not timed: memory is allocated and connections are set up.
WARM_UP_ITERATIONS = 3
#: Iterations timed between two records. On a GPU each one waits for the device.
TIMED_ITERATIONS = 8


@dataclass(frozen=True)
class IterationRows:
    """All-to-alls of one iteration, in seconds from its beginning.

    Attributes:
        seconds: duration of the iteration.
        backward: when the backward pass began.
        spans: layer, beginning and end of each all-to-all.
        sent_bytes: mean bytes that this rank contributed to an all-to-all.
        choices: the choice between algorithms for each all-to-all between servers.
        rates_source: origin of the rates of these predictions; None without predictions.
    """

    seconds: float
    backward: float
    spans: tuple[tuple[int, float, float], ...]
    sent_bytes: float
    choices: tuple[AllToAllChoice, ...] = ()
    rates_source: str | None = None

    @property
    def all_to_all(self) -> float:
        """Seconds in which at least one all-to-all was in flight."""
        return union_seconds((begin, end) for _, begin, end in self.spans)


class RowTimes:
    """Times the all-to-alls of the first iterations after each reading, while `watching`.

    It uses the clock of the GPU, or emulated time on an emulated device.
    """

    def __init__(self, module: nn.Module, device: torch.device, pace: Pace | None) -> None:
        self.watching = False
        self._layers = list(moe_layers(module).values())
        self._cuda, self._pace = device.type == "cuda", pace
        self._left_cold = WARM_UP_ITERATIONS
        self._is_timed = False
        self._begin: Any = None
        self._backward: Any = None
        self._spans: list[tuple[int, Any, Any]] = []
        self._submitted: list[tuple[int, Pending]] = []
        self._host_began_at = 0.0
        self._sent_bytes: list[int] = []
        self._choices: list[AllToAllChoice] = []
        self._rates_source: str | None = None
        self._timed: list[IterationRows] = []

    def begins(self) -> None:
        """Begin an iteration."""
        if not self.watching:
            return
        self._is_timed = not self._left_cold and len(self._timed) < TIMED_ITERATIONS
        self._left_cold = max(0, self._left_cold - 1)
        for number, layer in enumerate(self._layers):
            exchange = layer.exchange
            if isinstance(exchange, GroupExchange):
                exchange.timer = partial(self._transfer, number) if self._is_timed else untimed
            if isinstance(exchange, PipelinedExchange):
                exchange.submitted = partial(self._submit, number) if self._is_timed else None
        if self._is_timed:
            self._spans, self._submitted, self._sent_bytes, self._choices = [], [], [], []
            self._host_began_at = time.monotonic()
            self._begin = self._backward = self._now()

    def backward_begins(self) -> None:
        """Note that the backward pass begins."""
        if self._is_timed:
            self._backward = self._now()

    def ends(self) -> None:
        """End the iteration. Iterations without all-to-alls are not kept."""
        if not self._is_timed:
            return
        self._spans += [(layer, *pending.span) for layer, pending in self._submitted if pending.span]
        self._submitted = []
        if not self._spans:
            return
        end = self._now()
        if self._cuda:
            end.synchronize()
        seconds = max(0.0, self._since(end))

        def within(moment: Any) -> float:
            return min(max(0.0, self._since(moment)), seconds)

        spans = sorted((within(begin), within(end), layer) for layer, begin, end in self._spans)
        ordered = tuple((layer, begin, max(begin, end)) for begin, end, layer in spans)
        sent_bytes = fmean(self._sent_bytes)
        self._timed.append(
            IterationRows(
                seconds,
                within(self._backward),
                ordered,
                sent_bytes,
                tuple(self._choices),
                self._rates_source,
            )
        )

    def continue_from(self, timed: Sequence[IterationRows], *, watching: bool) -> None:
        """Continue with the times of an earlier copy of this model."""
        self._timed, self.watching = list(timed), watching

    def take(self) -> list[IterationRows]:
        """Return the iterations that were timed since the last call."""
        timed, self._timed = self._timed, []
        return timed

    @contextmanager
    def _transfer(self, layer: int, groups: Sequence[Any], sent_bytes: int) -> Iterator[None]:
        self._sent_bytes.append(sent_bytes)
        exchange = self._layers[layer].exchange
        if isinstance(exchange, HierarchicalExchange) and exchange.choice is not None:
            self._choices.append(exchange.choice)
            self._rates_source = exchange.rates_source
        begin = self._now()
        yield
        emulated = [group.last for group in groups if isinstance(group, EmulatedGroup)]
        span = (emulated[0][0], emulated[-1][1]) if emulated else (begin, self._now())
        self._spans.append((layer, *span))

    def _submit(self, layer: int, pending: Pending, sent_bytes: int) -> None:
        """Note an asynchronous operation, which carries one piece of the rows."""
        self._sent_bytes.append(sent_bytes)
        self._submitted.append((layer, pending))

    def _now(self) -> Any:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.monotonic() if self._pace is None else self._pace.clock.at

    def _since(self, moment: Any) -> float:
        if self._cuda and isinstance(moment, float):
            # A host time, of an operation whose end the host has waited for.
            return moment - self._host_began_at
        if self._cuda:
            return float(self._begin.elapsed_time(moment)) / 1000
        return float(moment - self._begin)


def timing_fields(timed: Sequence[IterationRows], places: Sequence[int | None]) -> dict[str, Any] | None:
    """Return a record's `timing` of some iterations; None if there are none.

    Args:
        places: each layer's place in the record; None for a layer that is not in it.
    """
    if not timed:
        return None
    last = timed[-1]
    spans = [
        {"layer": places[layer], "begin_seconds": begin, "end_seconds": end}
        for layer, begin, end in last.spans
        if places[layer] is not None
    ]
    iteration_seconds = fmean(each.seconds for each in timed)
    return {
        "iterations": len(timed),
        "iteration_seconds": iteration_seconds,
        "all_to_all_seconds": min(iteration_seconds, fmean(each.all_to_all for each in timed)),
        "seconds": last.seconds,
        "backward_seconds": last.backward,
        "spans": spans[: limits.SPANS_OF_A_WINDOW],
        "between_servers": _between_servers(timed),
    }


def _between_servers(timed: Sequence[IterationRows]) -> dict[str, Any] | None:
    """Return the algorithms used between servers, and means of one all-to-all; None without such."""
    choices = [choice for each in timed for choice in each.choices]
    if not choices:
        return None
    return {
        "rates_source": timed[-1].rates_source,
        "hierarchical_share": fmean(choice.algorithm is Algorithm.HIERARCHICAL for choice in choices),
        "flat_seconds": fmean(choice.flat_seconds for choice in choices),
        "hierarchical_seconds": fmean(choice.hierarchical_seconds for choice in choices),
        "predicted_seconds": fmean(choice.seconds for choice in choices),
        "measured_seconds": fmean(end - begin for each in timed for _, begin, end in each.spans),
    }


def traffic_fields(timed: Sequence[IterationRows]) -> dict[str, Any] | None:
    """Return the `experts` of a communication profile; None if no layer exchanged rows, or too many did.

    In the forward pass nothing else uses the links, and each layer sends its rows to experts and back.
    """
    passes = [passage for each in timed if (passage := _passes_of(each))]
    if not passes or len(passes[-1]) > limits.MOE_LAYERS_OF_A_MODEL:
        return None
    backward = [end - begin for each in timed for _, begin, end in each.spans if begin >= each.backward]
    alone = median(seconds for layers in passes for layer in layers for seconds in layer[:2])
    return {
        "layers": len(passes[-1]),
        "row_bytes": max(1.0, median(each.sent_bytes for each in timed)),
        "all_to_all_seconds": alone,
        "backward_all_to_all_seconds": median(backward) if backward else alone,
        "expert_seconds": median(layer[2] for layers in passes for layer in layers),
    }


def _passes_of(iteration: IterationRows) -> list[tuple[float, float, float]]:
    """Return for each layer's forward pass the seconds of its two all-to-alls, and between them."""
    forward: dict[int, list[tuple[float, float]]] = {}
    for layer, begin, end in iteration.spans:
        if begin < iteration.backward:
            forward.setdefault(layer, []).append((begin, end))
    return [
        (there[1] - there[0], back[1] - back[0], max(0.0, back[0] - there[1]))
        for spans in forward.values()
        for there, back in zip(spans[::2], spans[1::2], strict=False)
    ]


def union_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return the total time covered by at least one of the spans (begin, end)."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
