"""SIM-T: one training step of a mixture-of-experts model, simulated on one of many equal devices.

A device computes in sequence and has a link for all-to-all and all-reduce. All times are in one arbitrary
unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from moe.lina.micro_operations import Traffic
from moe.lina.scheduler import Mode
from moe.lina.shared_link import Rates, SimulatedLink, Transfer

_NEGLIGIBLE = 1e-9


class Hold(Enum):
    """How long new all-reduces wait, from the backward pass of a layer's combine on."""

    NEVER = "never"
    UNTIL_FIRST_ALL_TO_ALL = "until the first all-to-all is submitted"
    UNTIL_LAST_ALL_TO_ALL = "until the second all-to-all has ended"


@dataclass(frozen=True)
class Schedule:
    """How a system schedules communication. Packing is an input of `simulate_step`.

    Attributes:
        mode: mode of the scheduler.
        hold: when all-reduces wait for an all-to-all that is about to come.
        is_partitioned: all-reduces are cut into micro-operations; otherwise they are fused into buckets.
        is_pipelined: all-to-alls are cut and overlap with expert computation.
    """

    mode: Mode
    hold: Hold = Hold.NEVER
    is_partitioned: bool = False
    is_pipelined: bool = False


BASELINE = Schedule(Mode.TWO_STREAMS)
TUTEL = Schedule(Mode.TWO_STREAMS, is_pipelined=True)
FIXED = Schedule(Mode.TWO_STREAMS, Hold.UNTIL_LAST_ALL_TO_ALL)
PRIORITY = Schedule(Mode.STRICT)
PARTITION = Schedule(Mode.STRICT, Hold.UNTIL_FIRST_ALL_TO_ALL, is_partitioned=True)
PIPELINING = Schedule(Mode.STRICT, Hold.UNTIL_FIRST_ALL_TO_ALL, is_partitioned=True, is_pipelined=True)


@dataclass(frozen=True)
class StepModel:
    """Times of a model in the forward pass. Computation takes twice as long in the backward pass.

    Attributes:
        layers: layers, each with a mixture of experts.
        attention: computation of one layer; also `gate`, `combine` and `expert`.
        gradients: all-reduce of one layer's non-expert gradients.
        all_to_all: duration of one all-to-all, by devices of the expert-parallel group; 0 for one device.
        rates: of the two classes while both are active.
        bucket: gradients that are fused before they are sent, in a schedule without partitioning.
        piece: largest all-reduce micro-operation.
        overhead: added to each operation in a schedule with partitioning.
        expert_gradients: all-reduce of one layer's expert gradients, if experts are packed.
        pieces: micro-operations of a pipelined all-to-all.
        optimizer: after the backward pass.
    """

    layers: int
    attention: float
    gate: float
    combine: float
    expert: float
    gradients: float
    all_to_all: Mapping[int, float]
    rates: Rates = field(default_factory=Rates)
    bucket: float = 0.0
    piece: float = math.inf
    overhead: float = 0.0
    expert_gradients: float = 0.0
    pieces: int = 2
    optimizer: float = 0.0

    def __post_init__(self) -> None:
        times = {
            name: getattr(self, name)
            for name in (
                "attention", "gate", "combine", "expert", "gradients", "bucket", "overhead",
                "expert_gradients", "optimizer",
            )
        }  # fmt: skip
        times |= {f"all_to_all[{group}]": time for group, time in self.all_to_all.items()}
        for name, time in times.items():
            if time < 0:
                raise ValueError(f"{name} is {time:g}; it must be at least 0")
        if self.layers < 1 or self.pieces < 1 or not self.piece > 0:
            raise ValueError(
                f"layers is {self.layers}, pieces {self.pieces} and piece {self.piece:g}; "
                "layers and pieces must be at least 1, piece above 0"
            )


@dataclass(frozen=True)
class Step:
    """Times of a simulated step.

    Attributes:
        total: the whole step.
        forward: computation of the forward pass, with waiting.
        backward: computation of the backward pass, with waiting.
        all_to_all: time in which an all-to-all was on the link.
        slow_downs: of each all-to-all of the backward pass: time since its submission, over that alone on
            the link.
        all_reduce_ends: when each all-reduce ended.
    """

    total: float
    forward: float
    backward: float
    all_to_all: float
    slow_downs: tuple[float, ...]
    all_reduce_ends: tuple[float, ...]

    @property
    def all_to_all_share(self) -> float:
        """Share of all-to-all in the step."""
        return self.all_to_all / self.total


def simulate_step(model: StepModel, group_size: int, schedule: Schedule, is_packed: bool = False) -> Step:
    """Simulate one step.

    Args:
        group_size: devices of an expert-parallel group.
        is_packed: experts have replicas, so that their gradients are all-reduced.

    Raises:
        ValueError: the model has no all-to-all time for this group size.
    """
    if group_size not in model.all_to_all:
        known = ", ".join(map(str, model.all_to_all))
        raise ValueError(f"group_size is {group_size}; the model knows {known}")
    return _Device(model, model.all_to_all[group_size], schedule, is_packed).run()


class _Device:
    """The compute stream of the device; the link's time is its clock."""

    def __init__(self, model: StepModel, all_to_all: float, schedule: Schedule, is_packed: bool) -> None:
        self.model, self.schedule, self.is_packed = model, schedule, is_packed
        self.link = SimulatedLink(model.rates, schedule.mode)
        self.pieces = model.pieces if schedule.is_pipelined else 1
        self.overhead = model.overhead if schedule.is_partitioned else 0.0
        self.has_all_to_all = all_to_all > 0
        self.piece_work = all_to_all / self.pieces + self.overhead
        self.pending_gradients = 0.0
        self.all_reduces: list[Transfer] = []
        self.all_to_all_time = 0.0
        self.slow_downs: list[float] = []

    def run(self) -> Step:
        """Run the whole step."""
        model = self.model
        for _ in range(model.layers):
            self._compute(model.attention + model.gate)
            self._run_block(model.expert, is_backward=False)
            self._compute(model.combine)
        forward = self.link.now
        for layer in reversed(range(model.layers)):
            self._run_backward_layer(is_last=layer == 0)
        computed = self.link.now
        self.link.scheduler.hold = False
        ends = tuple(self.link.wait(all_reduce) for all_reduce in self.all_reduces)
        total = max(computed, *ends, 0.0) + model.optimizer
        return Step(total, forward, computed - forward, self.all_to_all_time, tuple(self.slow_downs), ends)

    def _run_backward_layer(self, is_last: bool) -> None:
        model, scheduler = self.model, self.link.scheduler
        scheduler.hold = self.schedule.hold is not Hold.NEVER
        self._compute(2 * model.combine)
        self._run_block(2 * model.expert, is_backward=True)
        scheduler.hold = False
        if self.is_packed:
            self._all_reduce(model.expert_gradients)
        self._compute(2 * (model.gate + model.attention))
        self.pending_gradients += model.gradients
        is_full = self.pending_gradients >= model.bucket - _NEGLIGIBLE
        if self.schedule.is_partitioned or is_last or is_full:
            self._all_reduce(self.pending_gradients)
            self.pending_gradients = 0.0

    def _compute(self, duration: float) -> None:
        self.link.advance(self.link.now + duration)

    def _all_reduce(self, work: float) -> None:
        if work <= 0:
            return
        pieces = math.ceil(work / self.model.piece - _NEGLIGIBLE) if self.schedule.is_partitioned else 1
        for _ in range(pieces):
            self.all_reduces.append(self.link.submit(Traffic.ALL_REDUCE, work / pieces + self.overhead))

    def _run_block(self, expert: float, is_backward: bool) -> None:
        """Send tokens to experts, compute, send them back."""
        scheduler = self.link.scheduler
        if not self.has_all_to_all:
            scheduler.hold = False
            self._compute(expert)
            return
        first = [self.link.submit(Traffic.ALL_TO_ALL, self.piece_work) for _ in range(self.pieces)]
        if self.schedule.hold is Hold.UNTIL_FIRST_ALL_TO_ALL:
            scheduler.hold = False
        second = []
        for transfer in first:
            self.link.wait(transfer)
            self._compute(expert / self.pieces)
            second.append(self.link.submit(Traffic.ALL_TO_ALL, self.piece_work))
        for transfer in second:
            self.link.wait(transfer)
        self.all_to_all_time += _time_on_link([*first, *second])
        if is_backward:
            self.slow_downs += [
                (transfer.ended_at - transfer.submitted_at) / transfer.work for transfer in (*first, *second)
            ]


def _time_on_link(transfers: list[Transfer]) -> float:
    """Return the time in which at least one of these transfers, which are in order, was on the link."""
    total, until = 0.0, 0.0
    for transfer in transfers:
        total += max(0.0, transfer.ended_at - max(transfer.began_at, until))
        until = max(until, transfer.ended_at)
    return total
