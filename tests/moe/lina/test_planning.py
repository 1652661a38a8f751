"""Lina's schedule as a plan: when it is predicted to win, and in which mode."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moe.lina.calibration import INTERFERENCE
from moe.lina.planning import MeasuredStep, choose_schedule, step_model
from moe.lina.scheduler import Mode

STEP = MeasuredStep(
    layers=4, row_bytes=8e6, all_to_all_seconds=0.02, backward_all_to_all_seconds=0.03, expert_seconds=0.01,
    backward_seconds=0.4, other_seconds=0.26, gradient_bytes=(50e6,) * 8, all_reduce_seconds=0.4,
    bucket_bytes=25e6, latency_seconds=1e-4,
)  # fmt: skip


def test_passes_are_simulated_without_their_all_to_alls() -> None:
    model = step_model(STEP)
    computed = 0.4 - 8 * 0.03
    assert model.layers * 2 * (model.attention + model.expert) == pytest.approx(computed)
    assert model.optimizer == pytest.approx(0.26 - 8 * 0.02 - computed / 2)


def test_rows_before_gradients_are_predicted_to_win() -> None:
    choice = choose_schedule(STEP)
    assert choice is not None
    assert choice.mode is Mode.BOUNDED_OVERLAP
    assert 0.5 < choice.time_ratio < 0.95


def test_rank_0_leads_where_overlap_wastes_the_link() -> None:
    choice = choose_schedule(replace(STEP, rates=INTERFERENCE))
    assert choice is not None
    assert choice.mode is Mode.LEADER
    assert choice.time_ratio < 0.8


def test_schedule_of_short_messages_is_predicted_to_lose() -> None:
    short = replace(STEP, gradient_bytes=(1e3,) * 2000, row_bytes=1e3, latency_seconds=2e-3)
    choice = choose_schedule(replace(short, all_reduce_seconds=0.002))
    assert choice is not None
    assert choice.time_ratio > 1


def test_step_without_any_time_has_no_schedule() -> None:
    nothing = MeasuredStep(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (), 0.0, 0.0, 0.0)
    assert choose_schedule(nothing) is None


def test_impossible_figures_are_refused() -> None:
    with pytest.raises(ValueError, match="expert_seconds is -1"):
        replace(STEP, expert_seconds=-1.0)
    with pytest.raises(ValueError, match="layers is 0"):
        replace(STEP, layers=0)
