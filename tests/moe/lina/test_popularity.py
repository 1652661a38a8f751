"""Profiles of paths, and estimates of popularity (V5)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.lina.expert_paths import profile_paths
from moe.lina.popularity import Estimate, estimate_popularity, most_popular

#: V5: two layers of path, then the layer that is estimated.
SEEN = [(0, 1, 2), (0, 1, 2), (0, 1, 0), (0, 2, 1), (1, 1, 1), (1, 1, 1), (1, 1, 2), (1, 1, 1)]
PROFILE = profile_paths(np.array(SEEN), (3, 3, 3), path_length=2)
BATCH = np.array([(0, 1)] * 3 + [(1, 1)] * 2 + [(0, 2)])


def test_v5_distributions_after_seen_paths():
    distributions = PROFILE.distributions(2, np.array([(0, 1), (0, 2), (1, 1)]))
    assert distributions == pytest.approx(np.array([[1 / 3, 0, 2 / 3], [0, 1, 0], [0, 3 / 4, 1 / 4]]))


def test_v5_unseen_paths_back_off_to_suffix_then_layer():
    distributions = PROFILE.distributions(2, np.array([(2, 1), (2, 0)]))
    assert distributions == pytest.approx(np.array([[1 / 7, 3 / 7, 3 / 7], [1 / 8, 1 / 2, 3 / 8]]))
    # Experts 1 and 2 tie: the lower number is kept.
    popularity = estimate_popularity(PROFILE, 2, np.array([(2, 1)]), estimate=Estimate.LITERAL)
    assert popularity.expected == pytest.approx([0, 3 / 7, 0])


@pytest.mark.parametrize(
    ("estimate", "shares", "demands"),
    [
        (Estimate.LITERAL, (0, 0.41667, 0.33333), (0, 1.25, 1.0)),
        (Estimate.NORM, (0, 0.5, 0.5), (0, 1.5, 1.5)),
        (Estimate.FULL, (1 / 6, 0.41667, 0.41667), (0.5, 1.25, 1.25)),
    ],
)
def test_v5_popularity(estimate, shares, demands):
    popularity = estimate_popularity(PROFILE, 2, BATCH, estimate=estimate)
    assert popularity.shares == pytest.approx(shares, abs=1e-5)
    assert popularity.demands(3) == pytest.approx(demands)


CHOICES = st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=12)


@given(
    CHOICES, CHOICES, st.lists(st.integers(0, 12), max_size=4), st.sampled_from(Estimate), st.integers(1, 3)
)
def test_estimates_of_devices_add_up(seen, batch, cuts, estimate, experts_per_token):
    profile = profile_paths(np.array(seen), (3, 3, 3), 2)
    paths = np.array(batch)[:, :2]
    parts = np.split(paths, sorted(cuts))
    estimates = [estimate_popularity(profile, 2, part, experts_per_token, estimate) for part in parts]
    whole = estimate_popularity(profile, 2, paths, experts_per_token, estimate)
    assert sum(estimated.tokens for estimated in estimates) == whole.tokens == len(batch)
    assert sum(estimated.expected for estimated in estimates) == pytest.approx(whole.expected)
    if estimate is not Estimate.LITERAL:
        assert whole.shares.sum() == pytest.approx(1)


@given(CHOICES, CHOICES)
def test_distributions_are_those_of_a_plain_count(seen, batch):
    profile = profile_paths(np.array(seen), (3, 3, 3), 2)
    distributions = profile.distributions(2, np.array(batch)[:, :2])
    for row, (older, newer, _) in zip(distributions, batch, strict=True):
        suffixes = [(older, newer), (newer,), ()]
        known = [
            [seen_path[2] for seen_path in seen if seen_path[2 - len(path) : 2] == path] for path in suffixes
        ]
        following = next(experts for experts in known if experts)
        assert row == pytest.approx(np.bincount(following, minlength=3) / len(following))


def test_layers_may_have_unequal_numbers_of_experts():
    profile = profile_paths(np.array([(4, 1, 2), (4, 0, 2), (0, 1, 0)]), (5, 2, 3), 2)
    distributions = profile.distributions(2, np.array([(4, 1), (3, 1), (4, 0)]))
    assert distributions == pytest.approx(np.array([[0, 0, 1], [1 / 2, 0, 1 / 2], [0, 0, 1]]))


def test_first_layers_and_unseen_layers_have_no_estimate():
    assert [PROFILE.can_estimate(layer) for layer in range(4)] == [False, False, True, False]
    empty = profile_paths(np.zeros((0, 3), dtype=int), (3, 3, 3), 2)
    assert not empty.can_estimate(2)
    assert not profile_paths(np.array(SEEN), (3, 3, 3), 4).can_estimate(2)
    for profile, layer in ((PROFILE, 1), (empty, 2)):
        with pytest.raises(ValueError, match=f"layer is {layer}; it must have 2 layers before it"):
            profile.distributions(layer, BATCH)


def test_no_tokens_give_no_demand():
    none = estimate_popularity(PROFILE, 2, BATCH[:0])
    assert none.tokens == 0
    assert not none.demands(3).any()


def test_lower_experts_come_first_among_equal_ones():
    assert most_popular(np.array([1, 2.5, 2.5, 0]), 3) == (1, 2, 0)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: profile_paths(np.array([(0, 1, 3)]), (3, 3, 3), 2), "column 2 has expert 3"),
        (lambda: profile_paths(np.array([(0, -1, 2)]), (3, 3, 3), 2), "column 1 has expert -1"),
        (lambda: profile_paths(np.array([(0, 1)]), (3, 3, 3), 2), r"it must be \(tokens, 3\)"),
        (lambda: profile_paths(np.array(SEEN), (3, 3, 3), 0), "path_length is 0"),
        (lambda: profile_paths(np.array(SEEN), (3, 3, 3), 40), "path_length is 40; paths among 3 experts"),
        (lambda: profile_paths(np.array(SEEN), (3, 0, 3), 2), "each layer must have at least 1"),
        (lambda: estimate_popularity(PROFILE, 2, BATCH, 4), "it must be from 1 to 3"),
        (lambda: PROFILE.distributions(2, np.array([(0, 1, 1)])), r"it must be \(tokens, 2\)"),
    ],
)  # fmt: skip
def test_wrong_profiles_and_paths_are_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
