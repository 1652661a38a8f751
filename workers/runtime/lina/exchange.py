"""Exchanges of rows with experts in pieces, overlapped with the experts' computation (Lina 4.3, steps T1 and
T3).

All pieces to the experts are submitted together. An expert computes a piece once it has arrived, and its
outputs are sent back at once. The order of the backward pass follows: autograd runs the newest step first, so
it submits the gradients of all pieces, the last piece first, before it waits for any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moe.lina.micro_operations import PARTITION_BYTES, MicroOperation, Traffic, count_pieces
from punctual.moe.exchange import ComputeExpert, compute_experts
from punctual.moe.group_exchange import Split
from punctual.moe.placement import ExpertPlacement
from workers.runtime.experts.expert_exchanges import RuntimeExchange
from workers.runtime.lina.communication import Pending, ScheduledCommunication

#: Called with an operation on rows and the bytes that this rank sends.
Submitted = Callable[[Pending, int], None]


@dataclass
class ExchangeTimes:
    """Times of a layer's forward passes, by micro-operation.

    Attributes:
        experts: functions that return the seconds of computing a piece; call them after the iteration.
        all_to_all: all-to-alls of rows.
    """

    experts: list[Callable[[], float]] = field(default_factory=list)
    all_to_all: list[Pending] = field(default_factory=list)

    @contextmanager
    def computation(self, device: torch.device) -> Iterator[None]:
        """Measure the computation inside this context."""
        mark = _mark(device)
        yield
        self.experts.append(partial(_seconds_between, mark, _mark(device)))


def _mark(device: torch.device) -> float | torch.cuda.Event:
    """Return a time mark: an event on the device's current stream, or this thread's clock."""
    if device.type != "cuda":
        return time.monotonic()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _seconds_between(first: float | torch.cuda.Event, last: float | torch.cuda.Event) -> float:
    if isinstance(first, torch.cuda.Event) and isinstance(last, torch.cuda.Event):
        last.synchronize()
        return first.elapsed_time(last) / 1000
    assert isinstance(first, float)
    assert isinstance(last, float)
    return last - first


class PipelinedExchange(RuntimeExchange):
    """Exchanges the rows of a layer by micro-operations.

    If every rank hosts every expert, only counts are exchanged.

    Attributes:
        submitted: called with each operation on rows and the bytes that this rank sends; None: not called.
    """

    def __init__(
        self,
        placement: ExpertPlacement,
        group: dist.ProcessGroup,
        communication: ScheduledCommunication,
        *,
        name: str,
        partition_bytes: float = PARTITION_BYTES,
    ) -> None:
        """Set up exchanges in a group that has no other use.

        Args:
            name: name of the layer, the same on all ranks.
            partition_bytes: largest size of a micro-operation.
        """
        super().__init__(placement, group)
        self.submitted: Submitted | None = None
        self._communication = communication
        self._name = name
        self._partition_bytes = partition_bytes
        self._passes = count()
        self._times = ExchangeTimes()

    def take_times(self) -> ExchangeTimes:
        """Return the times since the last call."""
        times, self._times = self._times, ExchangeTimes()
        return times

    def gather(self, numbers: Tensor) -> Tensor:
        """Gather the numbers of all ranks, in the order of this group's other operations."""
        gathered = numbers.new_zeros(dist.get_world_size(self._group), len(numbers))
        gathered[self.rank] = numbers
        operation = MicroOperation(Traffic.ALL_TO_ALL, f"{self._name}/{next(self._passes)}/counts")
        (pending,) = self._communication.submit([(operation, partial(self._begin_sum, gathered))])
        pending.wait()
        return gathered.cpu()

    def exchange(self, rows: Tensor, counts: Tensor, compute: ComputeExpert) -> Tensor:
        """Send rows to their hosts, compute the hosted experts, send the outputs back, in pieces."""
        if self._routes.is_local:
            with self._times.computation(rows.device):
                return compute_experts(rows, counts[self.rank], compute)
        if torch.is_grad_enabled() and not rows.requires_grad:
            # Every rank takes part in the backward pass.
            rows = rows.detach().requires_grad_()
        pieces = self._cut(rows, counts)
        order = torch.cat([piece.places for piece in pieces]).to(rows.device)
        leaving = rows.index_select(0, order).split([len(piece.places) for piece in pieces])
        name = f"{self._name}/{next(self._passes)}"
        there = [self._way(f"{name}/there", piece) for piece in pieces]
        arriving = [_Start.apply(sent, way) for sent, way in zip(leaving, there, strict=True)]
        back, returning = [], []
        for piece, way, unfinished in zip(pieces, there, arriving, strict=True):
            arrived = _Finish.apply(unfinished, way)
            with self._times.computation(rows.device):
                outputs = self._compute_hosted(arrived, piece.split.arriving, compute)
            back.append(self._way(f"{name}/back", piece, is_return=True))
            returning.append(_Start.apply(outputs, back[-1]))
        returned = torch.cat([_Finish.apply(*pair) for pair in zip(returning, back, strict=True)])
        self._times.all_to_all += [way.forward for way in (*there, *back)]
        restored: Tensor = returned.index_select(0, torch.argsort(order))
        return restored

    def watch_combined(self, combined: Tensor) -> Tensor:
        """Hold all-reduces from the backward pass of the combination onwards."""
        if not self._routes.is_local and combined.requires_grad:
            combined.register_hook(lambda _gradient: self._communication.hold())
        return combined

    def _begin_sum(self, gathered: Tensor) -> dist.Work | None:
        if self._emulated is not None:
            return self._emulated.bookkeeping(gathered)
        return dist.all_reduce(gathered, group=self._group, async_op=True)

    def _way(self, name: str, piece: _Piece, *, is_return: bool = False) -> _Way:
        sent, received = piece.split.sent, piece.split.received
        if is_return:
            sent, received = received, sent
        return _Way(self._communication, self._group, name, piece, sent, received, self.submitted)

    def _cut(self, rows: Tensor, counts: Tensor) -> list[_Piece]:
        """Cut each rank's rows of each expert into nearly equal runs, the same number on all ranks."""
        row_bytes = rows.element_size() * rows.shape[1]
        number = count_pieces(int(counts.sum(1).max()) * row_bytes, self._partition_bytes)
        ends = [counts * piece // number for piece in range(number + 1)]
        starts = counts[self.rank].cumsum(0) - counts[self.rank]
        pieces: list[_Piece] = []
        for first, last in zip(ends, ends[1:], strict=False):
            begin = (starts + first[self.rank]).tolist()
            end = (starts + last[self.rank]).tolist()
            places = [torch.arange(begin[expert], end[expert]) for expert in self._routes.leaving]
            split = Split.of(self._routes, last - first, self.rank)
            pieces.append(_Piece(len(pieces), number, split, torch.cat(places)))
        return pieces


@dataclass(frozen=True)
class _Piece:
    """A part of this rank's rows.

    Attributes:
        number, pieces: index of the piece, and the number of pieces.
        places: indices of the rows, in the order in which they are sent.
    """

    number: int
    pieces: int
    split: Split
    places: Tensor


class _Way:
    """The all-to-all of one piece in one direction, and of its gradient in the opposite direction.

    Attributes:
        forward: the operation on the rows, once submitted.
    """

    forward: Pending
    _backward: Pending
    _gradient: Tensor

    def __init__(
        self,
        communication: ScheduledCommunication,
        group: dist.ProcessGroup | None,
        name: str,
        piece: _Piece,
        sent: list[int],
        received: list[int],
        submitted: Submitted | None,
    ) -> None:
        """Args: `sent`, `received`: number of rows to and from each rank."""
        self._submitted = submitted
        self._communication, self._group = communication, group
        self._name, self._piece = name, piece
        self._sent, self._received = sent, received

    def submit(self, rows: Tensor) -> Tensor:
        """Submit the all-to-all of rows; return the receive buffer."""
        arriving, self.forward = self._submit(self._name, rows, self._sent, self._received)
        return arriving

    def submit_gradient(self, gradient: Tensor) -> None:
        """Submit the all-to-all of a gradient."""
        name = f"{self._name}/gradient"
        self._gradient, self._backward = self._submit(name, gradient, self._received, self._sent)

    def take_gradient(self) -> Tensor:
        """Wait for the gradient that was submitted last; return the received one."""
        self._backward.wait()
        gradient = self._gradient
        del self._gradient, self._backward
        return gradient

    def _submit(
        self, name: str, rows: Tensor, sent: list[int], received: list[int]
    ) -> tuple[Tensor, Pending]:
        arriving = rows.new_empty(sum(received), rows.shape[1])
        filled, leaving = arriving.detach(), rows.detach().contiguous()

        def begin() -> dist.Work | None:
            return dist.all_to_all_single(filled, leaving, received, sent, group=self._group, async_op=True)

        operation = MicroOperation(Traffic.ALL_TO_ALL, name, self._piece.number, self._piece.pieces)
        (pending,) = self._communication.submit([(operation, begin)])
        if self._submitted is not None:
            self._submitted(pending, leaving.nbytes)
        return arriving, pending


class _Start(torch.autograd.Function):
    """Submits rows forward; waits for their gradient backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, way: _Way) -> Tensor:
        """Return the receive buffer."""
        ctx.way = way
        return way.submit(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the received gradient."""
        return ctx.way.take_gradient(), None


class _Finish(torch.autograd.Function):
    """Waits for rows forward; submits their gradient backward."""

    @staticmethod
    def forward(ctx: Any, arriving: Tensor, way: _Way) -> Tensor:
        """Return the received rows."""
        ctx.way = way
        way.forward.wait()
        return arriving.view_as(arriving)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Submit the gradient. The returned tensor only has the shape that autograd expects."""
        ctx.way.submit_gradient(gradients[0])
        return gradients[0], None
