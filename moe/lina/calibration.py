"""CAL-1: times fitted to published speed-ups. None of them was published or measured."""

from __future__ import annotations

from moe.lina.shared_link import Rates
from moe.lina.training_step import StepModel

#: Fitted interference of overlapping classes: together they get 0.295 of the link.
INTERFERENCE = Rates(all_to_all=0.24, all_reduce=0.055)

#: A model of twelve layers, fitted jointly to the published mean speed-ups of training steps.
CALIBRATED = StepModel(
    layers=12,
    attention=0.14,
    gate=0.04,
    combine=0.37,
    expert=0.26,
    gradients=0.84,
    all_to_all={1: 0.0, 2: 0.35, 4: 0.485, 8: 0.78, 16: 1.06},
    rates=INTERFERENCE,
    bucket=1.15,
    piece=0.14,
    overhead=0.01,
    expert_gradients=0.43,
)
