"""Division of tokens among the hosts of an expert (V6)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.lina.dispatch import dispatch, quotas, token_devices
from moe.lina.expert_placement import place_experts
from tests.moe.lina.test_expert_placement import placements

TWO_REPLICAS = place_experts(np.array([2.0, 0]), 2)


def test_v6_three_experts():
    tokens = quotas(np.array([1, 2, 3]), place_experts(np.array([0.5, 1.25, 1.25]), 3))
    assert tokens[:, 1].tolist() == [2, 0, 0]
    assert tokens[:, 2].tolist() == [0, 2, 1]
    assert tokens.sum(axis=1).tolist() == [2, 2, 2]


def test_v6_eight_devices():
    placement = place_experts(np.array([2.4, 0.7, 0.5, 0.3, 0, 0, 0, 0]), 8)
    tokens = quotas(np.array([30, 9, 6, 4, 1, 1, 1, 4]), placement)
    assert [tokens[device, 0] for device in (0, 1, 3)] == [13, 12, 5]
    assert tokens.sum(axis=1).tolist() == [13, 12, 13, 11, 1, 1, 1, 4]


@given(placements(), st.booleans())
def test_no_token_is_lost_and_each_reaches_a_host(drawn, prefers_local):
    demands, devices, most, seed = drawn
    placement = place_experts(demands, devices, most_on_device=most, seed=seed)
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 20, size=(devices, len(demands)))
    known = dispatch(counts, placement, prefers_local=prefers_local)
    assert (known.sum(axis=1) == counts).all()
    assert not known.sum(axis=0)[~placement.hosted].any()
    quota = quotas(counts.sum(axis=0), placement)
    assert (known.sum(axis=0) == quota).all()
    exact = counts.sum(axis=0) * placement.weights / placement.weights.sum(axis=0)
    assert abs(quota - exact).max() < 1 + 1e-6
    experts = generator.permutation(np.repeat(np.arange(len(demands)), counts[0]))
    received = np.zeros_like(known[0])
    np.add.at(received, (token_devices(experts, known[0]), experts), 1)
    assert (received == known[0]).all()


def test_tokens_are_cut_in_the_order_of_sources():
    # Expert 0 has quotas of 4 and 4: device 0 takes the first four of 6 + 2.
    counts = np.array([[6, 0], [2, 0]])
    assert dispatch(counts, TWO_REPLICAS)[:, :, 0].tolist() == [[4, 2], [0, 2]]
    assert token_devices(np.zeros(6, dtype=int), np.array([[4, 0], [2, 0]])).tolist() == [0] * 4 + [1] * 2


def test_sources_serve_their_own_tokens_first():
    placement = place_experts(np.array([2.0, 1.0, 0]), 3)
    counts = np.array([[1, 0, 0], [3, 0, 0], [2, 0, 0]])
    assert placement.hosts(0) == (0, 1)
    assert dispatch(counts, placement)[:, :, 0].tolist() == [[1, 0, 0], [2, 1, 0], [0, 2, 0]]
    local = dispatch(counts, placement, prefers_local=True)
    assert local[:, :, 0].tolist() == [[1, 0, 0], [0, 3, 0], [2, 0, 0]]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: quotas(np.array([1]), TWO_REPLICAS), r"shape \(1,\); it must be \(2,\)"),
        (lambda: quotas(np.array([1, -2]), TWO_REPLICAS), "counts have -2; they must be at least 0"),
        (lambda: dispatch(np.array([1, 2]), TWO_REPLICAS), r"it must be \(2, 2\)"),
        (lambda: token_devices(np.array([0]), np.zeros((2, 2), dtype=int)), "flows have other numbers"),
    ],
)
def test_wrong_counts_are_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
