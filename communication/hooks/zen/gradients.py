"""Sparse gradients of a model, averaged after the backward pass by the schemes of Zen's plan."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from communication.espresso.options import Level
from communication.hooks import exchanges
from communication.hooks.groups import PlacementGroups
from communication.hooks.measures import StageSpan
from communication.hooks.zen.exchanges import Exchanged, all_to_everybody, doubling, in_parts
from communication.hooks.zen.measures import SparseMeasures
from communication.hooks.zen.orders import TensorOrders, ZenOrders
from communication.hooks.zen.packets import Rows
from communication.hooks.zen.partitions import ContiguousPartitions, HashedPartitions, Partitions
from communication.hooks.zen.wire import Wire
from communication.plan import Resource
from communication.zen.choosing import HASHED
from communication.zen.formats import INDEX_BYTES, VALUE_BYTES, Format
from communication.zen.schemes import Scheme


@dataclass(frozen=True)
class _Tensor:
    """A parameter with its orders. ``units``: of the share that this rank synchronises; ``sparse``: whether
    its gradient is kept as rows."""

    orders: TensorOrders
    parameter: nn.Parameter
    sparse: bool
    units: int
    partitions: Partitions | None


class SparseGradients:
    """Averages mostly zero gradients over all ranks, exactly.

    On several servers with several GPUs each gradient is first summed densely within its server: each GPU
    gets a share of the units. Then the shares are exchanged between servers, and gathered within them
    (Zen's full exchange).
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        orders: ZenOrders,
        groups: PlacementGroups,
        *,
        sparse: Collection[str] = (),
    ) -> None:
        """Attach to the gradients of the plan's tensors.

        Args:
            sparse: names of parameters whose gradients are kept as rows, for gradients that are None.

        Raises:
            ValueError: the plan is for other parameters, sizes or numbers.
        """
        self._groups = groups
        shape = groups.shape
        level = Level.INTER if shape.spread else Level.FLAT
        self._wire = Wire(groups.by_step[level, False]) if shape.workers > 1 else None
        self._shares = shape.gpus_per_server if shape.spread else 1
        self._share = groups.gpu if shape.spread else 0
        #: Begin and end of waits for the server's GPUs during the current tensor's exchange.
        self._within: list[tuple[float, float]] = []
        self.measures = SparseMeasures(0 if self._wire is None else self._wire.size)
        self._tensors = [self._checked(each, parameters, orders, sparse) for each in orders.tensors]

    def _checked(
        self,
        orders: TensorOrders,
        parameters: Mapping[str, nn.Parameter],
        plan: ZenOrders,
        sparse: Collection[str],
    ) -> _Tensor:
        parameter = parameters.get(orders.name)
        if parameter is None or parameter.numel() != orders.elements:
            raise ValueError(f"the model has no gradient {orders.name!r} with {orders.elements} elements")
        if not parameter.dtype.is_floating_point or parameter.dtype.itemsize > 4:
            raise ValueError(f"{orders.name} is of type {parameter.dtype}; gradients must be FP32")
        if orders.name in sparse and orders.width != math.prod(parameter.shape[1:]):
            raise ValueError(
                f"{orders.name} has rows of {math.prod(parameter.shape[1:])}; the plan "
                f"has rows of {orders.width}"
            )
        each = -(-(orders.elements // orders.width) // self._shares)
        units = max(0, min(each, orders.elements // orders.width - self._share * each))
        partitions: Partitions | None = None
        if self._wire is not None and orders.scheme in HASHED:
            seed = plan.hashes.seeds[0]
            partitions = HashedPartitions(units, self._wire.size, seed, parameter.device)
        elif self._wire is not None and orders.scheme is Scheme.SPARSE_PS:
            partitions = ContiguousPartitions(units, self._wire.size, parameter.device)
        return _Tensor(orders, parameter, orders.name in sparse, units, partitions)

    def after_backward(self) -> None:
        """Replace each gradient by the mean over all ranks; a missing gradient counts as zeros."""
        if self._wire is None:
            return
        begun, waited = time.perf_counter(), self._wire.seconds
        self._wire.begin()
        self.measures.spans = [
            span
            for number, tensor in enumerate(self._tensors)
            for span in self._timed(number, tensor, self._wire)
        ]
        exchange = self._wire.seconds - waited
        self.measures.iteration(time.perf_counter() - begun - exchange, exchange, self._wire.received_bytes)
        self._wire.received_bytes = 0

    def _timed(self, number: int, tensor: _Tensor, wire: Wire) -> Iterator[StageSpan]:
        """Synchronise a tensor; yield its waits, and the rank's own work between them, as spans."""
        wire.spans.clear()
        self._within.clear()
        at = time.perf_counter()
        self._synchronise(tensor, wire)
        ended = time.perf_counter()
        channel: Resource = "between" if self._groups.shape.spread else "within"
        waits: list[tuple[float, float, Resource]] = [(*span, channel) for span in wire.spans]
        waits += [(*span, "within") for span in self._within]
        for begun, until, resource in sorted(waits):
            yield StageSpan("encode", "gpu", number, at, begun)
            yield StageSpan("exchange", resource, number, begun, until)
            at = until
        yield StageSpan("decode", "gpu", number, at, ended)

    def _synchronise(self, tensor: _Tensor, wire: Wire) -> None:
        orders = tensor.orders
        if self._shares == 1:
            mine = _rows_of(tensor.parameter, orders.width)
            touched = len(mine)
            exchanged = _exchanged(tensor, mine, wire)
            rows = exchanged.total
        else:
            whole = _dense_of(tensor.parameter, orders.width)
            touched = int((whole != 0).any(1).sum())
            own = self._summed_within(whole, wire)
            # Rows beyond the last unit are zeros.
            exchanged = _exchanged(tensor, _all_units(own).without_zeros(), wire)
            rows = self._gathered_within(tensor, exchanged.total, len(own), wire)
        unit_bytes = INDEX_BYTES + VALUE_BYTES * orders.width
        self.measures.tensor(orders.name, touched, orders.elements // orders.width, exchanged, unit_bytes)
        self.measures.dense_bytes += int(2 * (wire.size - 1) / wire.size * VALUE_BYTES * orders.elements)
        _give(tensor, Rows(rows.places, rows.values / self._groups.shape.workers))

    def _summed_within(self, whole: Tensor, wire: Wire) -> Tensor:
        """Return this rank's share of the server's sum: a row for each unit, padded with zeros."""
        width = whole.shape[1]
        each = -(-len(whole) // self._shares)
        group = self._groups.by_step[Level.INTRA, False]
        begun = time.perf_counter()
        scattered = exchanges.reduce_scatter(whole.view(-1), each * width, each * width, group)
        wire.course.asked()
        scattered.work.wait()
        wire.course.came()
        found = scattered.result()
        self._within.append((begun, time.perf_counter()))
        assert found is not None
        return found.view(each, width)

    def _gathered_within(self, tensor: _Tensor, share: Rows, each: int, wire: Wire) -> Rows:
        """Return the whole sum from the shares of the server's GPUs."""
        width = tensor.orders.width
        own = share.values.new_zeros(each, width)
        own[share.places] = share.values
        group = self._groups.by_step[Level.INTRA, True]
        begun = time.perf_counter()
        gathered = exchanges.all_gather(own.view(-1), [each * width] * self._shares, group)
        wire.course.asked()
        gathered.work.wait()
        wire.course.came()
        found = gathered.result()
        self._within.append((begun, time.perf_counter()))
        assert found is not None
        whole = found.view(-1, width)
        return _all_units(whole).without_zeros()


def _exchanged(tensor: _Tensor, mine: Rows, wire: Wire) -> Exchanged:
    orders = tensor.orders
    if orders.scheme is Scheme.AGSPARSE:
        return all_to_everybody(mine, wire)
    if orders.scheme is Scheme.SPARCML:
        return doubling(mine, wire)
    if tensor.partitions is None:
        return _all_reduced(mine, tensor.units, wire)
    formats = (Format.COO, Format.COO)
    if orders.scheme is Scheme.ZEN:
        formats = (orders.push_format, orders.pull_format)
    return in_parts(mine, tensor.partitions, *formats, wire)


def _all_reduced(mine: Rows, units: int, wire: Wire) -> Exchanged:
    """Run the dense baseline: zeros are sent as well."""
    whole = mine.values.new_zeros(units, mine.values.shape[1])
    whole[mine.places] = mine.values
    wire.all_reduce(whole)
    return Exchanged(_all_units(whole).without_zeros())


def _all_units(whole: Tensor) -> Rows:
    return Rows(torch.arange(len(whole), device=whole.device), whole)


def _rows_of(parameter: nn.Parameter, width: int) -> Rows:
    """Return the non-zero units of this rank's gradient; none if it is missing."""
    gradient = parameter.grad
    if gradient is None:
        empty = torch.empty(0, width, device=parameter.device)
        return Rows(torch.empty(0, dtype=torch.int64, device=parameter.device), empty)
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        values = gradient.values().reshape(-1, width).float()
        return Rows(gradient.indices()[0], values).without_zeros()
    whole = gradient.reshape(-1, width).float()
    places = (whole != 0).any(1).nonzero().flatten()
    return Rows(places, whole[places])


def _dense_of(parameter: nn.Parameter, width: int) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros(parameter.numel() // width, width, device=parameter.device)
    return (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1, width).float()


def _give(tensor: _Tensor, mean: Rows) -> None:
    parameter = tensor.parameter
    gradient = parameter.grad
    values = mean.values.to(parameter.dtype)
    if gradient.is_sparse if gradient is not None else tensor.sparse:
        parameter.grad = torch.sparse_coo_tensor(
            mean.places[None],
            values.view(-1, *parameter.shape[1:]),
            parameter.shape,
            check_invariants=False,
            is_coalesced=True,
        )
        return
    whole = torch.zeros(parameter.numel() // tensor.orders.width, tensor.orders.width, device=values.device)
    whole = whole.to(parameter.dtype)
    whole[mean.places] = values
    if gradient is None:
        parameter.grad = whole.view(parameter.shape)
    else:
        gradient.copy_(whole.view(parameter.shape))
