"""Thinning keeps the integral of a step function and reports what it did."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.reports.steps import highest, running_counts, steps


def integral(drawn) -> float:
    return float((drawn.values[0][:-1] * np.diff(drawn.time)).sum())


def test_a_short_history_is_drawn_as_it_is_to_the_end_of_the_run():
    drawn = steps(np.array([0.0, 5.0]), np.array([1.0, 3.0]), 9.0)
    assert drawn.time.tolist() == [0.0, 5.0, 9.0]
    assert drawn.values.tolist() == [[1.0, 3.0, 3.0]]
    assert drawn.span_seconds is None


def test_a_long_history_is_drawn_as_means_over_equal_spans():
    # Ten GPUs for a tenth of the span and none for the rest are one GPU on average, however few instants say
    # so.
    drawn = steps(np.array([0.0, 1.0, 10.0, 15.0]), np.array([10.0, 0.0, 4.0, 8.0]), 20.0, most=2)
    assert drawn.time.tolist() == [0.0, 10.0, 20.0]
    assert drawn.values[0, :2].tolist() == [1.0, 6.0]
    assert drawn.span_seconds == 10.0
    assert drawn.instants == 4


@given(
    gaps=st.lists(st.floats(0.0, 1e4), min_size=1, max_size=60),
    most=st.integers(1, 20),
    seed=st.integers(0, 2**16),
)
def test_thinning_keeps_the_integral(gaps, most, seed):
    time = np.cumsum(gaps)
    values = np.random.default_rng(seed).uniform(0, 100, time.size)
    end = float(time[-1]) + 50.0
    exact = float((values * np.diff(np.append(time, end))).sum())
    assert integral(steps(time, values, end, most)) == pytest.approx(exact, rel=1e-9)


def test_parts_of_a_whole_still_add_up_to_it_after_thinning():
    draw = np.random.default_rng(3)
    time = np.sort(draw.uniform(0, 1000, 500))
    part = draw.uniform(0, 4, 500)
    drawn = steps(time, np.array([part, 4.0 - part]), 1000.0, most=20)
    np.testing.assert_allclose(drawn.values.sum(axis=0), 4.0)


def test_spans_without_a_value_stay_without_one():
    values = np.array([1.0, np.nan, np.nan, 3.0])
    drawn = steps(np.array([0.0, 10.0, 15.0, 20.0]), values, 30.0, most=3)
    np.testing.assert_array_equal(drawn.values[0], [1.0, np.nan, 3.0, 3.0])


def test_the_highest_value_of_a_span_counts_what_held_at_its_start():
    time, row = np.array([0.0, 4.0, 10.0, 12.0, 13.0]), np.array([7.0, 2.0, 1.0, 9.0, 1.0])
    assert highest(time, row, np.array([0.0, 5.0, 10.0, 15.0, 20.0])).tolist() == [7.0, 2.0, 9.0, 1.0]


def test_events_are_counted_exactly_where_they_are_drawn():
    events = np.array([1.0, 1.0, 3.0, np.nan])
    exact = running_counts([events], 0.0, 5.0)
    assert exact.time.tolist() == [0.0, 1.0, 3.0, 5.0]
    assert exact.counts.tolist() == [[0, 2, 3, 3]]
    assert exact.exact
    thinned = running_counts([events], 0.0, 4.0, most=2)
    assert thinned.time.tolist() == [0.0, 2.0, 4.0]
    assert thinned.counts.tolist() == [[0, 2, 3]]
    assert not thinned.exact
