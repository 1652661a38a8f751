"""Bounds on the release of blocked GPUs are at least as long as the remaining steps may take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.plans.release import (
    ReleaseBounds,
    confirmed_by,
    given_up_by,
    handed_over_and_suspended_by,
    measured_by,
    suspended_by,
)

BOUNDS = ReleaseBounds(
    report_seconds=1.0,
    silence_seconds=62.0,
    suspend_seconds=60.0,
    handover_seconds=60.0,
    measuring_seconds=60.0,
)
SECONDS = st.floats(0, 1e5)
ROUNDING = 1e-6
"""Seconds that sums taken in another order may differ by."""


@given(now=SECONDS, step=st.none() | SECONDS)
def test_a_handover_is_let_finish_before_the_suspension_begins(now: float, step: float | None) -> None:
    until = handed_over_and_suspended_by(step, now, BOUNDS)
    assert until >= max(now, step or 0.0) + BOUNDS.suspend_seconds + BOUNDS.confirming_seconds - ROUNDING
    assert until >= suspended_by(step, now, BOUNDS) - ROUNDING


@given(now=SECONDS, waited=SECONDS)
def test_measurement_block_covers_its_kill_and_earlier_suspensions(now: float, waited: float) -> None:
    alone = measured_by(now - waited, None, now, BOUNDS, waits=False)
    assert alone - now > BOUNDS.measuring_seconds
    after_others = measured_by(now - waited, None, now, BOUNDS, waits=True)
    assert after_others >= alone - ROUNDING
    assert after_others >= now - waited + BOUNDS.suspend_seconds + BOUNDS.measuring_seconds - ROUNDING


def test_the_bound_of_a_measurement_does_not_move_while_it_runs() -> None:
    first = measured_by(0.0, 10.0, 11.0, BOUNDS, waits=False)
    assert measured_by(0.0, 10.0, 60.0, BOUNDS, waits=False) == first


def test_an_agent_that_is_overdue_is_waited_for_like_a_silent_one() -> None:
    told_at = 100.0
    assert confirmed_by(told_at, told_at + BOUNDS.confirming_seconds, BOUNDS) is None
    late = told_at + BOUNDS.confirming_seconds + 1
    assert confirmed_by(told_at, late, BOUNDS) == late + BOUNDS.silence_seconds


def test_silent_server_release_counts_from_last_report_never_the_past() -> None:
    assert given_up_by(100.0, None, 110.0, BOUNDS) == 163.0
    assert given_up_by(100.0, 200.0, 110.0, BOUNDS) == 201.0
    assert given_up_by(100.0, None, 500.0, BOUNDS) == 501.0
