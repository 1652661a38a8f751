"""The one rule of when GPUs may change hands, and what failures cost."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.clock import changes_allowed, changes_allowed_from, slot_end_after
from scheduling.core.plans.reserve import failures_cost_seconds

TIMES = st.floats(0, 1e6)


def test_at_first_everything_may_change() -> None:
    assert changes_allowed(0.0, -inf, inf)


def test_a_slot_keeps_two_reallocations_apart() -> None:
    ends_at = slot_end_after(-inf, 100.0, 5.0, moved=True)
    assert ends_at == 105.0
    assert not changes_allowed(104.0, ends_at, inf)
    assert changes_allowed(105.0, ends_at, inf)


def test_what_a_plan_has_fixed_happens_when_it_is_planned_within_a_slot_too() -> None:
    ends_at = slot_end_after(-inf, 100.0, 60.0, moved=True)
    assert not changes_allowed(110.0, ends_at, 120.0)
    assert changes_allowed(120.0, ends_at, 120.0)
    assert changes_allowed_from(ends_at, 120.0) == 120.0


def test_an_answer_that_moves_nobody_begins_no_slot() -> None:
    assert slot_end_after(90.0, 100.0, 5.0, moved=False) == 90.0


@given(now=TIMES, ends_at=TIMES, wake_at=TIMES)
def test_waiting_until_the_named_time_is_always_enough(now: float, ends_at: float, wake_at: float) -> None:
    at = changes_allowed_from(ends_at, wake_at)
    assert changes_allowed(at, ends_at, wake_at)
    assert changes_allowed(now, ends_at, wake_at) or at > now


def test_failures_cost_their_fence_the_lost_work_a_start_and_two_slots_each() -> None:
    cost = failures_cost_seconds(
        2, fence_seconds=62.0, lost_work_seconds=60.0, restart_seconds=10.0, slot_seconds=5.0
    )
    assert cost == pytest.approx(2 * (62 + 60 + 10 + 2 * 5))
    assert (
        failures_cost_seconds(
            0, fence_seconds=62.0, lost_work_seconds=60.0, restart_seconds=1.0, slot_seconds=5.0
        )
        == 0
    )
