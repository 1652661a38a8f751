"""When GPUs may change hands, and what failures cost."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.costs.failures import FailureCost, failures_cost_seconds
from scheduling.core.clock import (
    changes_allowed,
    changes_allowed_from,
    given_out_again,
    looked_at_again,
    slot_end_after,
    tick_from,
)
from scheduling.core.plans.reserve import seconds_to_place_again

TIMES = st.floats(0, 1e6)


def test_at_first_everything_may_change() -> None:
    assert changes_allowed(0.0, -inf, inf)


def test_a_slot_keeps_two_reallocations_apart() -> None:
    ends_at = slot_end_after(-inf, 100.0, 5.0, moved=True)
    assert ends_at == 105.0
    assert not changes_allowed(104.0, ends_at, inf)
    assert changes_allowed(105.0, ends_at, inf)


def test_fixed_changes_are_allowed_at_their_time_within_a_slot() -> None:
    ends_at = slot_end_after(-inf, 100.0, 60.0, moved=True)
    assert not changes_allowed(110.0, ends_at, 120.0)
    assert changes_allowed(120.0, ends_at, 120.0)
    assert changes_allowed_from(ends_at, 120.0) == 120.0


def test_decision_without_moves_begins_no_slot() -> None:
    assert slot_end_after(90.0, 100.0, 5.0, moved=False) == 90.0


@given(now=TIMES, ends_at=TIMES, wake_at=TIMES)
def test_waiting_until_the_named_time_is_always_enough(now: float, ends_at: float, wake_at: float) -> None:
    at = changes_allowed_from(ends_at, wake_at)
    assert changes_allowed(at, ends_at, wake_at)
    assert changes_allowed(now, ends_at, wake_at) or at > now


@given(now=TIMES, ends_at=TIMES, wake_at=TIMES)
def test_next_decision_is_as_soon_as_gpus_may_change_hands(
    now: float, ends_at: float, wake_at: float
) -> None:
    at = looked_at_again(now, ends_at, wake_at)
    assert at == (
        now if changes_allowed_from(ends_at, wake_at) <= now else changes_allowed_from(ends_at, wake_at)
    )
    assert changes_allowed(at, ends_at, wake_at)


def test_gpus_of_a_job_that_ends_are_given_out_at_the_end_of_its_slot() -> None:
    assert given_out_again(100.0 + 61.0, 100.0, 60.0) == 220.0
    assert given_out_again(100.0 + 60.0, 100.0, 60.0) == 160.0
    assert given_out_again(100.0, 100.0, 60.0) == 160.0
    assert given_out_again(inf, 100.0, 60.0) == inf


def test_ticks_come_at_fixed_times() -> None:
    assert [tick_from(at, 30.0) for at in (0.0, 0.5, 30.0, 31.0, inf)] == [0.0, 30.0, 30.0, 60.0, inf]


def test_each_failure_costs_fence_lost_work_recovery_and_two_slots() -> None:
    cost = FailureCost(
        fence_seconds=62.0,
        resources_seconds=seconds_to_place_again(5.0),
        recovery_seconds=10.0,
        lost_work_seconds=60.0,
    )
    assert failures_cost_seconds(2, cost) == pytest.approx(2 * (62 + 60 + 10 + 2 * 5))
    assert failures_cost_seconds(0, cost) == 0
