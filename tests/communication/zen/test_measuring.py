"""Profiles from touched rows, the cost of a table at a rescale, and hints for placements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from communication.zen.measuring import measured_profile
from communication.zen.profile import PUBLISHED_SKEW
from communication.zen.sparsity import union
from communication.zen.synthetic import SyntheticTable

TABLE = SyntheticTable(rows=5_000, columns=1, touched=100)


def iterations(workers: int, count: int = 5) -> list[list[np.ndarray]]:
    return [[TABLE.touched_rows(worker, number) for worker in range(workers)] for number in range(count)]


def test_a_measured_profile_recovers_the_drawn_parameters():
    drawn = iterations(8)
    profile = measured_profile("table", 64 * TABLE.rows, 64, drawn)
    assert profile.units == TABLE.rows
    law = profile.densification
    assert law.density == pytest.approx(0.02)
    assert law.after(8) == pytest.approx(np.mean([len(union(each)) for each in drawn]) / TABLE.rows)
    pairs = [len(union(each[place : place + 2])) for each in drawn for place in (0, 2, 4, 6)]
    assert law.after(2) == pytest.approx(np.mean(pairs) / TABLE.rows)
    # Unmeasured points are extrapolated: 32 workers of the same kind.
    actual = len(union([TABLE.touched_rows(worker) for worker in range(32)])) / TABLE.rows
    assert law.after(32) == pytest.approx(actual, rel=0.06)
    assert profile.skew.ratio(16) == pytest.approx(9.0, rel=0.25)


def test_one_worker_shows_no_densification():
    profile = measured_profile("table", TABLE.rows, 1, iterations(1))
    assert profile.densification.measured == ()
    assert profile.densification.density == pytest.approx(0.02)


def test_an_untouched_table_has_the_published_skew():
    nothing = np.empty(0, np.int64)
    profile = measured_profile("table", 100, 1, [[nothing, nothing]])
    assert profile.densification.after(2) == 0.0
    assert profile.skew == PUBLISHED_SKEW


shapes = st.tuples(st.integers(1, 3), st.integers(1, 9), st.just(40))


@given(shapes.flatmap(lambda shape: arrays(bool, shape)))
def test_any_touched_rows_give_a_valid_profile(drawn):
    touched = [[np.flatnonzero(worker) + 1 for worker in iteration] for iteration in drawn]
    profile = measured_profile("table", 400, 10, touched)
    assert 0.0 <= profile.densification.density <= 1.0
    assert profile.densification.after(100) <= 1.0
    assert 1.0 <= profile.skew.ratio(8) <= 8.0


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ([], "nothing was measured"),
        ([[]], "nothing was measured"),
        ([[np.array([1])], [np.array([1]), np.array([2])]], "more workers"),
        ([[np.array([0])]], "from 1 to 40"),
        ([[np.array([41])]], "from 1 to 40"),
    ],
)
def test_impossible_measurements_are_refused(found, problem):
    with pytest.raises(ValueError, match=problem):
        measured_profile("table", 400, 10, found)
