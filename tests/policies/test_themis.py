"""Themis: shares of time by finish-time fairness, and leases by these shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from simulation.baselines.against_elasticflow.themis_kernels import fairest_fractions
from tests.core.building import sizes, snapshot
from tests.policies.asking import asking, given, go_on, replanned, slots


def fractions(needed, elapsed, isolated, gpus_each, gpus):
    needed, elapsed, isolated, gpus_each = (
        np.array(column, dtype=np.float64) for column in (needed, elapsed, isolated, gpus_each)
    )
    return fairest_fractions(needed, elapsed, isolated, gpus_each, float(gpus))


def worst_ratio(shares, needed, elapsed, isolated):
    return max((e + n / y) / i for y, n, e, i in zip(shares, needed, elapsed, isolated, strict=True))


def test_two_equal_jobs_share_the_time():
    assert fractions([100, 100], [0, 0], [200, 200], [4, 4], 4) == pytest.approx([0.5, 0.5])


def test_all_jobs_run_all_the_time_where_there_is_room():
    assert fractions([100, 50], [10, 0], [100, 50], [2, 2], 4).tolist() == [1.0, 1.0]


def test_longer_waiting_job_gets_more_time():
    patient, new = fractions([100, 100], [150, 0], [200, 200], [1, 1], 1)
    assert patient > new
    assert patient + new == pytest.approx(1.0)


def test_a_job_that_no_share_can_make_fair_gets_all_the_time_it_can():
    hopeless, other = fractions([100, 100], [1000, 0], [100, 200], [1, 1], 1.5)
    assert hopeless == 1.0
    assert other == pytest.approx(0.5)


@drawn(
    st.lists(
        st.tuples(st.floats(1, 100), st.floats(0, 100), st.floats(10, 200), st.sampled_from([1, 2, 4])),
        min_size=2,
        max_size=3,
    )
)
def test_no_other_shares_have_a_smaller_worst_ratio(jobs):
    """Against all shares on a grid."""
    needed, elapsed, isolated, gpus_each = (list(column) for column in zip(*jobs, strict=True))
    gpus = 4
    shares = fractions(needed, elapsed, isolated, gpus_each, gpus)
    assert float((shares * gpus_each).sum()) <= gpus * (1 + 1e-9)
    grid = np.linspace(0.05, 1.0, 20)
    tried = np.stack(np.meshgrid(*[grid] * len(jobs)), axis=-1).reshape(-1, len(jobs))
    tried = tried[tried @ np.array(gpus_each) <= gpus]
    ratios = ((np.array(elapsed) + np.array(needed) / tried) / np.array(isolated)).max(axis=1)
    assert worst_ratio(shares, needed, elapsed, isolated) <= ratios.min(initial=np.inf) * (1 + 1e-9)


def test_leases_go_round_among_equal_jobs():
    asked = snapshot(1, *(asking(name, work=1e5) for name in "abc"), settings=slots(60.0))
    ran = []
    for _ in range(6):
        decision, asked = go_on("themis", asked, 60.0)
        ran += [name for name, gpus in sizes(decision).items() if gpus]
    assert sorted(ran) == list("aabbcc")


def test_free_gpus_are_filled_with_jobs_that_fit():
    jobs = [asking("wide", 4), asking("half", 2), asking("also", 2)]
    assert sum(given("themis", 4, *jobs, settings=slots(60.0)).values()) == 4


def test_lease_is_one_slot_while_a_job_waits():
    crowded = snapshot(1, asking("a"), asking("b"), settings=slots(60.0))
    assert replanned("themis", crowded).next_wake_at == 60.0
    assert replanned("themis", snapshot(2, asking("a"), asking("b"))).next_wake_at == float("inf")
