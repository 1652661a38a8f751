"""The number of GPUs of a multi-task job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moe.moesys.checks import check_at_least, check_not_negative, check_positive
from moe.moesys.choices import Mode
from moe.moesys.elastic import plan_elastic
from moe.moesys.tasks import ElasticPlan, RankMemory, Task


@dataclass(frozen=True, slots=True)
class StepCost:
    """Time of a step: T = c0 + c1 · (largest load).

    Attributes:
        fixed_seconds: c0.
        seconds_per_load: c1, for one unit of load. A sample is a unit if costs are equal.

    Raises:
        ValueError: a value is negative.
    """

    fixed_seconds: float
    seconds_per_load: float

    def __post_init__(self) -> None:
        check_not_negative("fixed_seconds", self.fixed_seconds)
        check_not_negative("seconds_per_load", self.seconds_per_load)

    def seconds(self, largest_load: float) -> float:
        """Return the time of a step in which the fullest GPU has this load."""
        return self.fixed_seconds + self.seconds_per_load * largest_load


def fit_step_cost(measured: Mapping[float, float]) -> StepCost:
    """Fit the cost to seconds by largest load: exact for two loads, least squares for more.

    Neither constant becomes negative.

    Raises:
        ValueError: there are fewer than two loads.
    """
    if len(measured) < 2:
        raise ValueError(f"measured has {len(measured)} loads; a fit needs at least two loads")
    loads, seconds = np.array(list(measured), dtype=float), np.array(list(measured.values()), dtype=float)
    slope, fixed = np.polyfit(loads, seconds, 1)
    if fixed < 0.0:
        return StepCost(0.0, float((loads @ seconds) / (loads @ loads)))
    if slope < 0.0:
        return StepCost(float(seconds.mean()), 0.0)
    return StepCost(float(fixed), float(slope))


@dataclass(frozen=True, slots=True)
class Gang:
    """A plan and its prediction.

    Attributes:
        step_seconds: of one step.
        samples_per_second: of all GPUs.
        samples_per_second_and_gpu: of one GPU.
    """

    plan: ElasticPlan
    step_seconds: float
    samples_per_second: float
    samples_per_second_and_gpu: float


def predict_gang(plan: ElasticPlan, cost: StepCost) -> Gang:
    """Predict the throughput of a plan.

    Raises:
        ValueError: a step takes no time.
    """
    seconds = cost.seconds(plan.largest_load)
    check_positive("time of a step", seconds)
    rate = sum(task.batch for task in plan.tasks) / seconds
    return Gang(plan, seconds, rate, rate / plan.gpus)


def useful_gangs(
    tasks: Sequence[Task], cost: StepCost, free_gpus: int, memory: RankMemory | None = None
) -> tuple[Gang, ...]:
    """Return the gangs of at most `free_gpus` GPUs, ascending. Each is faster than all smaller ones.

    Raises:
        ValueError: memory allows no gang.
    """
    check_at_least("free_gpus", free_gpus)
    gangs: list[Gang] = []
    budget = free_gpus
    while budget:
        try:
            plan = plan_elastic(tasks, Mode.BUDGET, budget, memory=memory)
        except ValueError:
            if not gangs:
                raise
            break
        gang = predict_gang(plan, cost)
        if gangs and gang.step_seconds == gangs[-1].step_seconds:
            gangs.pop()
        gangs.append(gang)
        budget = plan.gpus - 1
    return tuple(reversed(gangs))


def choose_gang(
    tasks: Sequence[Task],
    cost: StepCost,
    free_gpus: int,
    *,
    steps: int | None = None,
    deadline_seconds: float | None = None,
    memory: RankMemory | None = None,
) -> Gang | None:
    """Return the smallest gang that meets the deadline, or None. Without a deadline, return the gang with the
    most samples per second and GPU; of equals, the smaller one.

    Args:
        steps: left before the deadline.

    Raises:
        ValueError: a deadline comes without steps, or memory allows no gang.
    """
    gangs = useful_gangs(tasks, cost, free_gpus, memory)
    if deadline_seconds is None:
        return max(gangs, key=lambda gang: (gang.samples_per_second_and_gpu, -gang.plan.gpus))
    check_not_negative("deadline_seconds", deadline_seconds)
    if steps is None:
        raise ValueError("steps is missing; a deadline needs it")
    check_at_least("steps", steps)
    return next((gang for gang in gangs if gang.step_seconds * steps <= deadline_seconds), None)
