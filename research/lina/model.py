"""Steps of the fitted model (CAL-1) by number of experts and schedule."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from moe.lina.calibration import CALIBRATED
from moe.lina.scheduler import Mode
from moe.lina.shared_link import Rates
from moe.lina.training_step import (
    BASELINE,
    FIXED,
    PARTITION,
    PIPELINING,
    PRIORITY,
    TUTEL,
    Schedule,
    Step,
    StepModel,
    simulate_step,
)

SIZES = (2, 4, 8, 16)
#: The packing factor that the paper chose, except for Transformer-XL with 16 experts.
PACKING_FACTOR = 2
LINA = "Lina"
#: Schedules without packing; Lina is pipelining with packing.
SCHEDULES: dict[str, Schedule] = {
    "Tutel": TUTEL,
    "fixed": FIXED,
    "priority": PRIORITY,
    "partition": PARTITION,
    "pipelining": PIPELINING,
}
FAIR, LOSING = Rates(), Rates(0.25, 0.25)


@cache
def _baseline(rates: Rates, experts: int) -> Step:
    return simulate_step(with_rates(rates), experts, BASELINE)


def baseline(experts: int, rates: Rates = CALIBRATED.rates) -> Step:
    """Return the step of DeepSpeed with as many devices as experts."""
    return _baseline(rates, experts)


@cache
def _step(name: str, experts: int, rates: Rates, factor: int, mode: Mode) -> Step:
    model = with_rates(rates)
    if name != LINA:
        return simulate_step(model, experts, SCHEDULES[name])
    return simulate_step(model, experts // factor, replace(PIPELINING, mode=mode), is_packed=factor > 1)


def step(
    name: str, experts: int, rates: Rates = CALIBRATED.rates, factor: int = PACKING_FACTOR,
    mode: Mode = Mode.STRICT,
) -> Step:  # fmt: skip
    """Return the step of a schedule; `factor` and `mode` are Lina's."""
    return _step(name, experts, rates, factor, mode)


def gain(
    name: str, experts: int, rates: Rates = CALIBRATED.rates, factor: int = PACKING_FACTOR,
    mode: Mode = Mode.STRICT,
) -> float:  # fmt: skip
    """Return the speed-up of a step over the baseline."""
    return baseline(experts, rates).total / step(name, experts, rates, factor, mode).total


def mean_gain(name: str, rates: Rates = CALIBRATED.rates) -> float:
    """Return the mean speed-up over all sizes."""
    return sum(gain(name, experts, rates) for experts in SIZES) / len(SIZES)


def all_to_all_gain(experts: int) -> float | None:
    """Return how much less time the all-to-alls of a step take with Lina; None if none is left."""
    left = step(LINA, experts).all_to_all
    return baseline(experts).all_to_all / left if left else None


def layer_gain(experts: int, is_backward: bool) -> float:
    """Return the speed-up of an MoE layer, which is a layer without its attention."""
    attention = (2 if is_backward else 1) * CALIBRATED.layers * CALIBRATED.attention

    def layer_time(found: Step) -> float:
        return (found.backward if is_backward else found.forward) - attention

    return layer_time(baseline(experts)) / layer_time(step(LINA, experts))


def with_rates(rates: Rates) -> StepModel:
    """Return the fitted model on another link."""
    return replace(CALIBRATED, rates=rates)
