"""Whether a job should train by Lina's schedule, and with which choices, by SIM-T (Lina 4.2).

A step without the schedule and steps with it are simulated from what was measured without it. Simulated
times are compared with each other only, so that planners with other engines can use their ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from moe.lina.micro_operations import PARTITION_BYTES, count_pieces
from moe.lina.scheduler import Mode
from moe.lina.shared_link import Rates
from moe.lina.training_step import BASELINE, Hold, Schedule, StepModel, simulate_step

#: Pieces of an exchange that are tried besides `PARTITION_BYTES`.
PIECES = (1, 2, 4, 8)
#: Most all-reduces of a simulated step. A larger number is simulated as this many, with the full overhead.
MOST_ALL_REDUCES = 512
#: Operations of small messages for each micro-operation: in LEADER rank 0 announces each launch.
_MESSAGES = {Mode.BOUNDED_OVERLAP: 1, Mode.LEADER: 2}
#: Shortest simulated piece.
_SHORTEST_SECONDS = 1e-9


@dataclass(frozen=True)
class MeasuredStep:
    """A training step without the schedule.

    Attributes:
        layers: with experts. row_bytes: that a rank gives to one all-to-all.
        all_to_all_seconds: of one all-to-all of the forward pass.
        backward_all_to_all_seconds: of one of the backward pass.
        expert_seconds: computation of a rank's experts of one layer in the forward pass.
        backward_seconds: of the backward pass; other_seconds: of the forward pass and the optimizer. Both
            include their all-to-alls.
        gradient_bytes: of each gradient that is all-reduced.
        all_reduce_seconds: of all of them, alone on the link.
        bucket_bytes: of gradients that are sent together without the schedule.
        latency_seconds: of one operation.
        rates: of the two classes of traffic that overlap on a link.

    Raises ValueError for negative figures and for no layer.
    """

    layers: int
    row_bytes: float
    all_to_all_seconds: float
    backward_all_to_all_seconds: float
    expert_seconds: float
    backward_seconds: float
    other_seconds: float
    gradient_bytes: Sequence[float]
    all_reduce_seconds: float
    bucket_bytes: float
    latency_seconds: float
    rates: Rates = Rates()

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"layers is {self.layers}; it must be at least 1")
        for name in (
            "row_bytes", "all_to_all_seconds", "backward_all_to_all_seconds", "expert_seconds",
            "backward_seconds", "other_seconds", "all_reduce_seconds", "bucket_bytes", "latency_seconds",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name):g}; it must be at least 0")


@dataclass(frozen=True)
class ScheduleChoice:
    """The best schedule.

    Attributes:
        mode: `BOUNDED_OVERLAP` or `LEADER`.
        partition_bytes: most bytes of a micro-operation.
        time_ratio: simulated seconds of a step, over those of a step without the schedule.
    """

    mode: Mode
    partition_bytes: int
    time_ratio: float


def choose_schedule(step: MeasuredStep) -> ScheduleChoice | None:
    """Return the schedule of the shortest simulated step, with the largest pieces of equals; None if nothing
    takes any time."""
    model = step_model(step)
    without = simulate_step(model, 1, BASELINE).total
    if without <= 0:
        return None
    choices = [
        ScheduleChoice(mode, partition, simulate_step(scheduled, 1, _schedule(mode)).total / without)
        for mode, partition, scheduled in _candidates(step, model)
    ]
    return min(choices, key=lambda choice: (round(choice.time_ratio, 9), -choice.partition_bytes))


def step_model(step: MeasuredStep) -> StepModel:
    """Return the step as SIM-T's input, without its waits for rows.

    Computation beside experts is divided evenly over the layers. The forward pass takes half as long as the
    backward pass; what remains beside both is the optimizer's.
    """
    exchanges = 2 * step.layers
    backward = max(0.0, step.backward_seconds - exchanges * step.backward_all_to_all_seconds)
    expert = min(step.expert_seconds, backward / exchanges)
    other = step.other_seconds - exchanges * step.all_to_all_seconds - backward / 2
    total_bytes = sum(step.gradient_bytes)
    return StepModel(
        layers=step.layers,
        attention=backward / exchanges - expert,
        gate=0.0,
        combine=0.0,
        expert=expert,
        gradients=step.all_reduce_seconds / step.layers,
        all_to_all={1: step.all_to_all_seconds},
        rates=step.rates,
        bucket=step.all_reduce_seconds * min(1.0, step.bucket_bytes / max(1.0, total_bytes)),
        optimizer=max(0.0, other),
    )


def _schedule(mode: Mode) -> Schedule:
    return Schedule(mode, Hold.UNTIL_FIRST_ALL_TO_ALL, is_partitioned=True, is_pipelined=True)


def _candidates(step: MeasuredStep, model: StepModel) -> Iterator[tuple[Mode, int, StepModel]]:
    partitions = {PARTITION_BYTES, *(max(1, ceil(step.row_bytes / pieces)) for pieces in PIECES)}
    for partition in sorted(partitions, reverse=True):
        operations = sum(count_pieces(size, partition) for size in step.gradient_bytes)
        simulated = max(1, min(operations, MOST_ALL_REDUCES))
        for mode, messages in _MESSAGES.items():
            overhead = messages * step.latency_seconds
            # Pieces never span gradients, so there may be more of them than total bytes over `partition`.
            total = step.all_reduce_seconds + overhead * (operations - simulated)
            yield (
                mode,
                partition,
                replace(
                    model,
                    gradients=total / step.layers,
                    piece=max(_SHORTEST_SECONDS, total / simulated),
                    pieces=count_pieces(step.row_bytes, partition),
                    overhead=overhead,
                ),
            )
