"""Execution of an option on a gradient, by the ranks of a placement (Espresso 4.2).

`communication/espresso/operations.py` describes each operation: the ranks that take part, the part of the
gradient that a rank holds before it, and its form. Here sums are flat FP32 tensors, and a stack of payloads
is their concatenated bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from communication.espresso.operations import Operation, operations, part_bounds, piece_bounds
from communication.espresso.options import Option, Routine, Task
from communication.hooks import exchanges
from communication.hooks.device_time import Course
from communication.hooks.exchanges import Exchange
from communication.hooks.feedback import ErrorFeedback, seed_of
from communication.hooks.groups import PlacementGroups
from communication.hooks.measures import Ending, StageNotes
from communication.hooks.residuals import Row
from communication.profiles.codec import Device


class Carrying:
    """The execution of an option on one gradient. A collective operation; all ranks get the same bits."""

    def __init__(
        self,
        option: Option,
        gradient: int,
        values: Tensor,
        feedback: ErrorFeedback,
        groups: PlacementGroups,
        seed: int,
        notes: StageNotes | None = None,
        course: Course | None = None,
    ) -> None:
        """Start nothing.

        Args:
            gradient: its number, the key of its residuals.
            values: flat FP32, which may be overwritten.
            seed: equal on all ranks, different in each iteration.
            notes: records the stages.
            course: reports to the device's clock.
        """
        self._course = Course() if course is None else course
        self._notes = StageNotes() if notes is None else notes
        self._operations = operations(option, groups.shape)
        self._gradient = gradient
        self._elements = len(values)
        self._feedback = feedback
        self._codec = feedback.codec
        self._groups = groups
        self._seed = seed
        self._home = values.device
        #: Where the exchanged data lies: some codecs run on processors.
        self._device = values.device
        self._sums: Tensor | None = values
        self._stack: Tensor | None = None

    @property
    def sums(self) -> Tensor:
        """The sum, after the last operation."""
        assert self._sums is not None
        return self._sums.to(self._home)

    def works(self) -> Iterator[dist.Work]:
        """Work up to each collective, start and yield it; continue after it has ended."""
        for operation in self._operations:
            if not operation.takes_part(self._groups.server, self._groups.gpu):
                if operation.step.is_codec:
                    self._device = self._device_of(operation)
                continue
            begun = time.perf_counter()
            resource = operation.resource(self._groups.shape).told
            self._course.goes_on()
            if operation.step.task is Task.COMP:
                self._encode(operation)
                self._pass("encode", operation)
                self._notes.passed("encode", resource, self._gradient, begun, time.perf_counter())
            elif operation.step.task is Task.DECOMP:
                self._decode(operation)
                self._pass("decode", operation)
                self._notes.passed("decode", resource, self._gradient, begun, time.perf_counter())
            else:
                exchange = self._begin(operation)
                self._course.asked()
                ending = Ending(exchange.work, on_gpu=self._device.type == "cuda")
                yield exchange.work
                self._course.came()
                received = exchange.received_bytes
                self._notes.passed("exchange", resource, self._gradient, begun, ending.at, received)
                self._end(operation, exchange)

    def channels(self) -> list[dist.ProcessGroup]:
        """Return the groups of this rank's collectives, in order."""
        return [
            self._groups.of(each)
            for each in self._operations
            if not each.step.is_codec and each.takes_part(self._groups.server, self._groups.gpu)
        ]

    # -- codecs

    def _pass(self, stage: Literal["encode", "decode"], operation: Operation) -> None:
        device = operation.step.device
        assert device is not None
        elements = len(self._held(operation).part)
        payloads = operation.payloads if stage == "decode" else 1
        self._course.coded(stage, self._codec.name, device, elements, payloads)

    def _encode(self, operation: Operation) -> None:
        assert self._sums is not None
        assert operation.point is not None
        self._device = self._device_of(operation)
        held = self._held(operation)
        row = Row(self._gradient, operation.point, held.part.start, len(held.part))
        seed = seed_of(self._seed, self._gradient, operation.point)
        self._stack = self._feedback.encode(row, self._sums.to(self._device), held.pieces, seed)
        self._sums = None

    def _decode(self, operation: Operation) -> None:
        assert self._stack is not None
        self._device = self._device_of(operation)
        held = self._held(operation)
        sums = torch.zeros(len(held.part), device=self._device)
        payloads = iter(self._stack.to(self._device).split(held.piece_bytes * operation.payloads))
        for _ in range(operation.payloads):
            for piece in held.pieces:
                self._codec.add(next(payloads), sums[piece.start - held.part.start :][: len(piece)])
        self._sums, self._stack = sums, None

    def _device_of(self, operation: Operation) -> torch.device:
        return torch.device("cpu") if operation.step.device is Device.CPU else self._home

    # -- exchanges

    def _begin(self, operation: Operation) -> Exchange:
        group = self._groups.of(operation)
        if operation.step.routine is Routine.BROADCAST:
            return exchanges.broadcast(self._own_or_room(operation), group)
        if operation.compressed:
            return self._begin_with_payloads(operation, group)
        return self._begin_with_sums(operation, group)

    def _end(self, operation: Operation, exchange: Exchange) -> None:
        found = exchange.result()
        if operation.compressed:
            self._stack = found
            if found is not None and operation.step.routine is Routine.ALL_GATHER and operation.second_step:
                self._stack = self._by_payload(operation, found)
        else:
            self._sums = found

    def _own_or_room(self, operation: Operation) -> Tensor:
        """Return this rank's data, or a buffer of its size: before a broadcast only the root has data."""
        own = self._stack if operation.compressed else self._sums
        if own is not None:
            return own
        held = self._held(operation)
        if operation.compressed:
            length = operation.payloads * sum(held.piece_bytes)
            return torch.empty(length, dtype=torch.uint8, device=self._device)
        return torch.empty(len(held.part), device=self._device)

    def _begin_with_sums(self, operation: Operation, group: dist.ProcessGroup) -> Exchange:
        assert self._sums is not None
        routine = operation.step.routine
        if routine is Routine.ALL_REDUCE:
            return exchanges.all_reduce(self._sums, group)
        if routine is Routine.REDUCE:
            return exchanges.reduce(self._sums, group)
        if routine is Routine.REDUCE_SCATTER:
            widths = self._divided(self._held(operation).part, operation.participants)
            return exchanges.reduce_scatter(self._sums, widths[0], widths[group.rank()], group)
        return exchanges.all_gather(self._sums, [len(part) for part, _ in self._siblings(operation)], group)

    def _begin_with_payloads(self, operation: Operation, group: dist.ProcessGroup) -> Exchange:
        assert self._stack is not None
        routine = operation.step.routine
        if routine is Routine.GATHER:
            return exchanges.gather(self._stack, group)
        if routine is Routine.ALL_TO_ALL:
            return self._all_to_all(operation, self._stack, group)
        lengths = [len(self._stack)] * operation.participants
        if operation.second_step:
            lengths = [operation.payloads * sum(sizes) for _, sizes in self._siblings(operation)]
        return exchanges.all_gather(self._stack, lengths, group)

    def _all_to_all(self, operation: Operation, stack: Tensor, group: dist.ProcessGroup) -> Exchange:
        """Give each rank its share of the pieces of all payloads."""
        sizes = self._held(operation).piece_bytes
        share = operation.pieces // operation.participants
        lengths = [sum(sizes[at : at + share]) for at in range(0, len(sizes), share)]
        ordered = _transposed(stack, [lengths] * operation.payloads)
        sent = [operation.payloads * length for length in lengths]
        return exchanges.all_to_all(ordered, sent, sent[group.rank()], group)

    def _by_payload(self, operation: Operation, gathered: Tensor) -> Tensor:
        """Reassemble gathered stacks of payload parts into a stack of payloads."""
        lengths = [[sum(sizes)] * operation.payloads for _, sizes in self._siblings(operation)]
        return _transposed(gathered, lengths)

    # -- layout

    def _held(self, operation: Operation) -> _Held:
        """Return the part and pieces of this rank before an operation, even if it holds no data."""
        part = part_bounds(
            self._elements, operation.cuts, self._groups.server, self._groups.gpu, self._groups.shape
        )
        pieces = piece_bounds(part, operation.piece_cuts[len(operation.cuts) :])
        return _Held(part, pieces, [self._codec.payload_bytes(len(piece)) for piece in pieces])

    def _siblings(self, operation: Operation) -> list[tuple[range, list[int]]]:
        """Return each rank's part before the second step of a level, with the bytes of its pieces."""
        whole = part_bounds(
            self._elements, operation.cuts[:-1], self._groups.server, self._groups.gpu, self._groups.shape
        )
        inner = operation.piece_cuts[len(operation.cuts) :]
        return [
            (part, [self._codec.payload_bytes(len(piece)) for piece in piece_bounds(part, inner)])
            for part in piece_bounds(whole, operation.cuts[-1:])
        ]

    @staticmethod
    def _divided(part: range, parts: int) -> list[int]:
        width = -(-len(part) // parts)
        return [len(part[width * number : width * (number + 1)]) for number in range(parts)]


@dataclass(frozen=True, slots=True)
class _Held:
    part: range
    pieces: tuple[range, ...]
    piece_bytes: list[int]


def _transposed(content: Tensor, lengths: Sequence[Sequence[int]]) -> Tensor:
    """Reorder rows of blocks of these lengths into column order."""
    if len(lengths) == 1 or len(lengths[0]) == 1:
        return content
    begins = list(accumulate((length for row in lengths for length in row), initial=0))
    columns = len(lengths[0])
    order = [row * columns + column for column in range(columns) for row in range(len(lengths))]
    return torch.cat([content[begins[block] : begins[block + 1]] for block in order])
