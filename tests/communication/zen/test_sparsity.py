"""Characteristics of sparse gradients (Z1), laws through their measured points, and synthetic tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from communication.zen.balance import push_imbalance
from communication.zen.densification import (
    Densification,
    Skew,
    beta_between,
    fitted_densification,
    skew_from,
)
from communication.zen.sparsity import density, overlap, part_counts, skewness, union
from communication.zen.synthetic import SyntheticTable
from tests.communication.zen.examples import ELEMENTS, INDICES


def test_measures_of_the_example():
    one, two, three = INDICES
    assert (overlap(one, two), overlap(one, three), overlap(two, three)) == (0.5, 0.5, 0.25)
    assert density(one, ELEMENTS) == pytest.approx(0.26667, abs=5e-6)
    assert len(union(INDICES)) == 7
    assert density(union(INDICES), ELEMENTS) == pytest.approx(0.46667, abs=5e-6)
    counts = [part_counts(index, ELEMENTS, 3).tolist() for index in INDICES]
    assert counts == [[2, 2, 0], [1, 2, 1], [1, 2, 1]]
    assert [skewness(each, ELEMENTS, 3) for each in INDICES] == [1.5, 1.5, 1.5]


def test_contiguous_parts_are_those_of_the_paper():
    for server in range(3):
        own = np.arange(5 * server + 1, 5 * (server + 1) + 1)
        assert part_counts(own, 15, 3).tolist() == [5 if one == server else 0 for one in range(3)]


def test_push_imbalance_of_contiguous_parts_is_the_skewness():
    table = SyntheticTable(5000, 1, 300)
    indices = table.indices(0)
    counts = part_counts(indices, table.elements, 16)
    assert push_imbalance([counts]) == pytest.approx(skewness(indices, table.elements, 16))


def test_empty_gradients_have_no_overlap_and_no_skew():
    none = np.empty(0, np.int64)
    assert overlap(none, INDICES[0]) == 0.0
    assert skewness(none, 15, 3) == 1.0
    assert density(none, 0) == 0.0


@pytest.mark.parametrize(
    ("density_of_one", "after", "beta"), [(0.0106, 0.408, 0.75235), (0.0247, 0.6153, 0.66267)]
)
def test_the_law_between_the_end_points(density_of_one, after, beta):
    found = beta_between(density_of_one, 128, after)
    assert found == pytest.approx(beta, abs=5e-6)
    law = Densification(density_of_one, found)
    assert law.after(128) == pytest.approx(after)
    assert law.ratio(1) == 1.0
    assert Densification(0.9, 1.0).after(100) == 1.0


@given(
    st.floats(1e-4, 0.9), st.floats(0.0, 1.0), st.lists(st.floats(0.0, 1.0), max_size=4), st.floats(1.0, 300)
)
def test_a_law_passes_through_its_measurements_and_never_falls(first, beta, shares, workers):
    measured, last, count = {1: first}, (1, first), 1
    for share in shares:
        count *= 2
        # Between the known minimum and maximum.
        most = min(1.0, last[1] * count / last[0])
        last = (count, last[1] + share * (most - last[1]))
        measured[count] = last[1]
    law = fitted_densification(measured)
    for each, found in measured.items():
        assert law.after(each) == pytest.approx(found)
    assert 0.0 <= law.beta <= 1.0
    assert law.after(workers) <= min(1.0, workers * first) + 1e-9
    assert law.after(workers) <= law.after(workers * 1.5) + 1e-12
    plain = Densification(first, beta)
    assert plain.after(workers) >= first


def test_halving_the_batch_equals_splitting_it_over_two_workers():
    law = Densification(0.02, 0.7, ((2, 0.03), (4, 0.045)))
    half = law.with_batch(0.5)
    assert half.after(2) == pytest.approx(law.after(1))
    assert half.after(4) == pytest.approx(law.after(2))
    assert half.after(8) == pytest.approx(law.after(4))
    assert half.after(16) == pytest.approx(law.after(8))
    assert half.density < law.density
    twice = law.with_batch(2.0)
    assert twice.density == pytest.approx(law.after(2))
    assert twice.after(2) == pytest.approx(law.after(4))


def test_a_batch_keeps_no_measurement_that_contradicts_its_density():
    law = Densification(0.1, 0.5, ((2, 0.1), (4, 0.4)))
    assert law.with_batch(2.0) == Densification(0.1, 0.5)


@pytest.mark.parametrize(
    "arguments",
    [(-0.1, 0.5), (1.1, 0.5), (0.1, -0.5), (0.1, 1.5), (0.1, float("nan")), (0.1, 0.5, ((2, 0.05),)),
     (0.1, 0.5, ((2, 0.3),)), (0.1, 0.5, ((4, 0.2), (2, 0.15)))],
)  # fmt: skip
def test_impossible_laws_are_refused(arguments):
    with pytest.raises(ValueError, match="density|beta|ascending"):
        Densification(*arguments)


def test_skew_grows_with_parts():
    skew = skew_from(128, 70.0)
    assert skew.ratio(128) == pytest.approx(70.0)
    assert skew.ratio(8) > 4.8, "more than 60 % in the first of eight parts"
    ratios = [skew.ratio(parts) for parts in range(1, 200)]
    assert ratios == sorted(ratios)
    assert Skew(1.0).ratio(7) == pytest.approx(7.0)
    with pytest.raises(ValueError, match="skewness"):
        skew_from(4, 5.0)


def test_a_synthetic_table_is_skewed_and_overlaps_in_part():
    table = SyntheticTable(rows=20_000, columns=4, touched=400)
    assert table.density == 0.02
    workers = [table.indices(worker, seed=5) for worker in range(16)]
    assert all(len(each) == 1600 for each in workers)
    measured = len(union(workers)) / 1600
    assert 1.5 < measured < 15.0
    eight, sixteen = (skewness(workers[0], table.elements, parts) for parts in (8, 16))
    assert eight > 4.8
    assert sixteen > eight
    law = table.measured_densification((2, 4, 8, 16), seed=5)
    assert law.after(16) == pytest.approx(len(union(workers)) / table.elements)
    assert 0.5 < law.beta < 0.9
    flat = SyntheticTable(20_000, 4, 400, shift=20_000)
    assert skewness(flat.indices(0), flat.elements, 8) < 2.0


def test_synthetic_gradients_are_the_same_for_the_same_seed_alone():
    table = SyntheticTable(500, 3, 40)
    gradient = table.gradient(2, 7, 1, whole=True)
    assert gradient.tolist() == table.gradient(2, 7, 1, whole=True).tolist()
    assert gradient.tolist() != table.gradient(3, 7, 1, whole=True).tolist()
    assert (np.flatnonzero(gradient) + 1).tolist() == table.indices(2, 7, 1).tolist()
    assert np.all(gradient == gradient.round())
