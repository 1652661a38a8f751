"""The cost of failures: wasted time (G6), the overhead of failures (G8, G9), and the best frequency of
points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.costs.failures import (
    FailureCost,
    effective_share,
    failures_cost_seconds,
    lost_share,
    renewed_share,
)
from recovery.costs.frequency import points_every, share_of_time
from recovery.costs.wasted_time import Checkpointing, in_memory, iterations_between

MINUTE = 60.0


def test_g6_wasted_time_of_gpt2_100b():
    """Iterations of 62 s, 480 s to storage."""
    software = in_memory(62.0)
    assert software.wasted_seconds == 93.0
    assert in_memory(62.0, retrieval_seconds=3.0).wasted_seconds == 96.0
    assert iterations_between(480.0, 62.0) == 8
    assert iterations_between(480.0 + 81.0, 62.0) == 10  # 9.05; the text calls it 9
    eight = Checkpointing(480.0, 8 * 62.0, 480.0)
    nine = Checkpointing(480.0, 9 * 62.0, 480.0)
    assert (eight.wasted_seconds, nine.wasted_seconds) == (1208.0, 1239.0)
    assert eight.wasted_seconds / software.wasted_seconds == pytest.approx(13.0, abs=0.05)
    assert nine.wasted_seconds / software.wasted_seconds == pytest.approx(13.3, abs=0.05)
    strawman = Checkpointing(480.0, 3 * 3600.0, 480.0)
    assert strawman.wasted_seconds == 6360.0
    assert strawman.wasted_seconds / software.wasted_seconds == pytest.approx(68.4, abs=0.1)


def test_best_and_worst_case_lie_one_period_apart():
    nine = Checkpointing(480.0, 558.0, 480.0)
    assert (nine.least_wasted_seconds, nine.most_wasted_seconds) == (960.0, 1518.0)


def test_mt_nlg_wastes_105_minutes():
    """6.4 TB at 20 Gbps, checkpoint after checkpoint; the text counts 42 minutes each."""
    seconds = 6.4e12 / 2.5e9
    assert seconds == 2560.0
    checkpoint_minutes = int(seconds / MINUTE)
    assert Checkpointing(checkpoint_minutes, checkpoint_minutes, checkpoint_minutes).wasted_seconds == 105.0


def test_checkpoints_cannot_overtake_each_other():
    with pytest.raises(ValueError, match="takes 480 s, so one every 62 s cannot be"):
        Checkpointing(480.0, 62.0, 480.0)
    with pytest.raises(ValueError, match="at least one iteration apart"):
        in_memory(62.0, 0)
    with pytest.raises(ValueError, match="retrieval_seconds"):
        Checkpointing(1.0, 1.0, -1.0)


# Failures -------------------------------------------------------------------------------------


def minutes(overhead):
    return FailureCost(0.0, 0.0, overhead * MINUTE, 0.0)


GEMINI, STRAWMAN, HIGH_FREQUENCY = minutes(9), minutes(8 + 8 + 90 + 6), minutes(8 * 2.5 + 6)


@pytest.mark.parametrize(
    ("a_day", "gemini", "strawman", "high_frequency"),
    [
        (0, 1.0, 1.0, 0.8571),
        (1, 0.9938, 0.9222, 0.8391),
        (2, 0.9875, 0.8444, 0.8210),
        (4, 0.9750, 0.6889, 0.7849),
        (8, 0.9500, 0.3778, 0.7127),
        (15, 0.9062, 0.0, 0.5863),
    ],
)
def test_g8_effective_training_time(a_day, gemini, strawman, high_frequency):
    assert effective_share(a_day, GEMINI) == pytest.approx(gemini, abs=6e-5)
    assert effective_share(a_day, STRAWMAN) == pytest.approx(strawman, abs=6e-5)
    assert effective_share(a_day, HIGH_FREQUENCY, 480 / 560) == pytest.approx(high_frequency, abs=6e-5)


@pytest.mark.parametrize(
    ("machines", "gemini", "high_frequency", "strawman"),
    [
        (200, 0.9812, 0.8030, 0.7667),
        (400, 0.9625, 0.7488, 0.5333),
        (600, 0.9437, 0.6946, 0.3000),
        (800, 0.9250, 0.6405, 0.0667),
    ],
)
def test_g8_by_machines(machines, gemini, high_frequency, strawman):
    a_day = 0.015 * machines
    assert effective_share(a_day, GEMINI) == pytest.approx(gemini, abs=6e-5)
    assert effective_share(a_day, HIGH_FREQUENCY, 480 / 560) == pytest.approx(high_frequency, abs=6e-5)
    assert effective_share(a_day, STRAWMAN) == pytest.approx(strawman, abs=6e-5)


def test_g9_one_failure_phase_by_phase():
    software = FailureCost(15.0, 0.0, 162.0 + 240.0, 0.0)
    hardware = FailureCost(15.0, 5.5 * MINUTE, 162.0 + 240.0, 0.0)
    assert software.seconds / MINUTE == pytest.approx(6.95)
    assert hardware.seconds / MINUTE == pytest.approx(12.45)


def test_a_failures_cost_is_the_sum_of_its_phases():
    cost = FailureCost(
        fence_seconds=62.0, resources_seconds=120.0, recovery_seconds=37.0, lost_work_seconds=600.0
    )
    assert failures_cost_seconds(0, cost) == 0.0
    assert failures_cost_seconds(2, cost) == 2 * 819.0
    with pytest.raises(ValueError, match="lost_work_seconds"):
        FailureCost(1.0, 1.0, 1.0, float("inf"))


@given(st.floats(0.0, 100.0), st.floats(0.0, 1e5))
def test_shares_of_time_lie_between_zero_and_one(a_day, seconds):
    cost = FailureCost(0.0, 0.0, seconds, 0.0)
    assert 0.0 <= effective_share(a_day, cost) <= renewed_share(a_day, cost) + 1e-12 <= 1.0 + 1e-12
    assert lost_share(a_day, cost) + effective_share(a_day, cost) == pytest.approx(1.0)


def test_first_order_and_renewal_differ_by_0_8_points_at_1000():
    assert renewed_share(15, GEMINI) - effective_share(15, GEMINI) == pytest.approx(0.008, abs=5e-4)


# Frequency ------------------------------------------------------------------------------------


def test_without_extension_every_iteration_has_a_point():
    assert points_every(0.0, 62.0, 0.0) == 1


@given(st.floats(1e-4, 100.0), st.floats(0.01, 100.0), st.floats(1e-9, 1e-2))
def test_no_other_frequency_costs_less(extension, iteration, rate):
    every = points_every(extension, iteration, rate)
    chosen = share_of_time(every, extension, iteration, rate)
    for other in {max(1, every - 1), every + 1, 2 * every, max(1, every // 2)}:
        assert chosen <= share_of_time(other, extension, iteration, rate) * (1 + 1e-12)


def test_q_star_by_hand():
    """An extension of 2 s, iterations of 10 s, a failure in 10,000 s: √(2 · 2 · 10,000) / 10 = 20."""
    assert points_every(2.0, 10.0, 1e-4) == 20


@pytest.mark.parametrize("figures", [(-1.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, -1.0), (1.0, 1.0, 0.0)])
def test_inputs_without_a_best_frequency_are_refused(figures):
    with pytest.raises(ValueError, match="must not be negative|above 0"):
        points_every(*figures)
