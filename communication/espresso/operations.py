"""The operations of an option on a placement, in order and complete enough to execute.

The timeline is computed from these operations, and ranks execute the same ones. Each specifies who takes
part, which part of the gradient a rank holds before it, and in which form.

Ranks are numbered by server and GPU. A gradient of n elements is cut evenly into parts of ⌈n / p⌉ elements;
the last ones may be shorter or empty. Parts are cut again in the same way. A rank holds either one row of
sums or a stack of payloads: encoded contributions to the same part, which are decoded and added up. A payload
consists of separately encoded pieces, so that an exchange can divide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from math import prod

from communication import plan
from communication.espresso.options import Level, Option, Routine, Step, Task
from communication.profiles.codec import Device
from communication.profiles.placement import PlacementShape


class Resource(IntEnum):
    """A resource that an operation occupies. Each serves one operation at a time."""

    GPU = 0
    CPU = 1
    WITHIN = 2
    """The links within a server."""
    BETWEEN = 3
    """A server's network interface."""

    @property
    def told(self) -> plan.Resource:
        """Name in spans of predicted and measured iterations."""
        return _TOLD[self.value]


_TOLD: tuple[plan.Resource, ...] = ("gpu", "processors", "within", "between")


@dataclass(frozen=True, slots=True)
class Cut:
    """A division of a part among the ranks of a level; the first rank gets the first piece."""

    level: Level
    parts: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of an option on a placement.

    Attributes:
        step: task, routine, level or device.
        participants: ranks that exchange; 1 for a codec's step.
        cuts: cuts of the gradient, from the whole to the part that a rank holds before the operation.
        payloads: number in a rank's stack before the operation; 1 for a row of sums.
        piece_cuts: for compressed gradients, cuts from the whole to one piece, beginning with ``cuts``. For
            an encoder: the pieces that it makes.
        compressed: whether payloads are exchanged or decoded, rather than sums.
        first_gpu_alone, first_server_alone: whether only the first GPU of each server, or only the first
            server, takes part.
        per_server: ranks of one server that take part.
        point: number of an encoder among the option's compressions, from 0. Each has its own residuals.
    """

    step: Step
    participants: int
    cuts: tuple[Cut, ...]
    payloads: int
    piece_cuts: tuple[Cut, ...]
    compressed: bool
    first_gpu_alone: bool
    first_server_alone: bool
    per_server: int
    point: int | None = None

    @property
    def parts(self) -> int:
        """Number of parts of the gradient, of which a rank holds one before the operation."""
        return prod(cut.parts for cut in self.cuts)

    @property
    def pieces(self) -> int:
        """Number of pieces in one payload."""
        return prod(cut.parts for cut in self.piece_cuts) // self.parts

    @property
    def second_step(self) -> bool:
        """Whether it reverses the cut or the reduction to a root of its level's first step."""
        return self.step.task in (Task.COMM2, Task.COMM2_C)

    def takes_part(self, server: int, gpu: int) -> bool:
        """Whether that rank takes part in the operation. The first such rank is the root, if there is one."""
        return not (self.first_gpu_alone and gpu) and not (self.first_server_alone and server)

    def resource(self, shape: PlacementShape) -> Resource:
        """Return its resource. A flat exchange on several servers occupies the links between servers."""
        if self.step.is_codec:
            return Resource.GPU if self.step.device is Device.GPU else Resource.CPU
        within = self.step.level is Level.INTRA or (self.step.level is Level.FLAT and not shape.spread)
        return Resource.WITHIN if within else Resource.BETWEEN


@lru_cache(maxsize=1 << 16)
def operations(option: Option, shape: PlacementShape) -> tuple[Operation, ...]:
    """Return the operations of an option on a placement, in order.

    Exchanges with one participant are left out, and compression only for such an exchange. At the end every
    rank has the whole sum.
    """
    state = _State(shape)
    return tuple(state.apply(step, rest) for step, rest in _with_rest(_needed_steps(option, shape)))


def part_bounds(elements: int, cuts: Sequence[Cut], server: int, gpu: int, shape: PlacementShape) -> range:
    """Return the range of a gradient's elements in a rank's part after these cuts."""
    low, high = 0, elements
    for cut in cuts:
        width = -(-(high - low) // cut.parts)
        begin = low + width * _number(cut.level, server, gpu, shape)
        low, high = min(begin, high), min(begin + width, high)
    return range(low, high)


def piece_bounds(bounds: range, cuts: Sequence[Cut]) -> tuple[range, ...]:
    """Return the pieces of a part under further cuts, in order. Some may be empty."""
    pieces = [bounds]
    for cut in cuts:
        pieces = [
            piece[width * number : width * (number + 1)]
            for piece in pieces
            for width in (-(-len(piece) // cut.parts),)
            for number in range(cut.parts)
        ]
    return tuple(pieces)


def _number(level: Level, server: int, gpu: int, shape: PlacementShape) -> int:
    """Return a rank's number among the participants of an exchange on a level."""
    if level is Level.INTRA:
        return gpu
    return server if level is Level.INTER else server * shape.gpus_per_server + gpu


def _size(level: Level, shape: PlacementShape) -> int:
    if level is Level.INTRA:
        return shape.gpus_per_server
    return shape.servers if level is Level.INTER else shape.workers


def _needed_steps(option: Option, shape: PlacementShape) -> tuple[Step, ...]:
    """Return the steps except exchanges with one participant, and codecs with no exchange in between."""
    needed: list[Step] = []
    for step in option:
        if step.level is not None and _size(step.level, shape) == 1:
            continue
        if step.task is Task.DECOMP and needed and needed[-1].task is Task.COMP:
            needed.pop()
            continue
        needed.append(step)
    return tuple(needed)


def _with_rest(steps: Sequence[Step]) -> list[tuple[Step, Sequence[Step]]]:
    return [(step, steps[number + 1 :]) for number, step in enumerate(steps)]


class _State:
    """The state along a path: parts, payloads, form, and the ranks that continue."""

    def __init__(self, shape: PlacementShape) -> None:
        self._shape = shape
        self._cuts: tuple[Cut, ...] = ()
        self._piece_cuts: tuple[Cut, ...] | None = None
        self._payloads = 1
        self._first_gpu_alone = False
        self._first_server_alone = False
        self._points = 0

    def apply(self, step: Step, rest: Sequence[Step]) -> Operation:
        """Return the operation of a step in this state, and advance the state."""
        operation = self._described(step, rest)
        if step.task is Task.COMP:
            self._piece_cuts = operation.piece_cuts
            self._points += 1
        elif step.task is Task.DECOMP:
            self._piece_cuts, self._payloads = None, 1
        else:
            self._exchanged(operation)
        return operation

    def _described(self, step: Step, rest: Sequence[Step]) -> Operation:
        level = step.level
        first_gpu = self._first_gpu_alone and level not in (Level.INTRA, Level.FLAT)
        first_server = self._first_server_alone and level not in (Level.INTER, Level.FLAT)
        operation = Operation(
            step=step,
            participants=1 if level is None else _size(level, self._shape),
            cuts=self._cuts,
            payloads=self._payloads,
            piece_cuts=self._cuts if self._piece_cuts is None else self._piece_cuts,
            compressed=self._piece_cuts is not None,
            first_gpu_alone=first_gpu,
            first_server_alone=first_server,
            per_server=1 if first_gpu else self._shape.gpus_per_server,
        )
        if step.task is not Task.COMP:
            return operation
        return replace(operation, piece_cuts=(*self._cuts, *self._divided(rest)), point=self._points)

    def _divided(self, rest: Sequence[Step]) -> list[Cut]:
        """Return the cuts made before the payload is decoded."""
        cuts = []
        for step in rest:
            if step.task is Task.DECOMP:
                break
            if step.routine is Routine.ALL_TO_ALL and step.level is not None:
                cuts.append(Cut(step.level, _size(step.level, self._shape)))
        return cuts

    def _exchanged(self, operation: Operation) -> None:
        step, level = operation.step, operation.step.level
        assert level is not None
        if operation.second_step:
            if step.routine is Routine.ALL_GATHER:
                self._cuts = self._cuts[:-1]
            self._alone(level, False)
            return
        if step.routine in (Routine.REDUCE_SCATTER, Routine.ALL_TO_ALL):
            self._cuts = (*self._cuts, Cut(level, operation.participants))
        if step.routine in (Routine.REDUCE, Routine.GATHER):
            self._alone(level, True)
        if operation.compressed:
            self._payloads *= operation.participants

    def _alone(self, level: Level, alone: bool) -> None:
        """Record that only the root continues, or all ranks again."""
        if level in (Level.INTRA, Level.FLAT):
            self._first_gpu_alone = alone
        if level in (Level.INTER, Level.FLAT):
            self._first_server_alone = alone
