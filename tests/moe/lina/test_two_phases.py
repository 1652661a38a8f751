"""Placement by estimate, and again where the estimate was wrong (V7)."""

from __future__ import annotations

import numpy as np
import pytest

from moe.lina.dispatch import quotas
from moe.lina.popularity import Popularity
from moe.lina.two_phases import (
    Comparison,
    Match,
    PlacementRules,
    demands_of,
    plan_first_phase,
    plan_second_phase,
)

#: V5, `full`, for a batch of six tokens.
FULL = Popularity(6, np.array([1, 2.5, 2.5]))


def test_v7_lists_are_compared_in_order_or_as_sets():
    counts = np.array([1, 2, 3])
    ordered, as_set = PlacementRules(3), PlacementRules(3, match=Match.SET)
    first = plan_first_phase(ordered, 2, 3, FULL)
    assert [first.placement.experts_of(device) for device in range(3)] == [(1,), (2,), (0, 1, 2)]
    tuned = plan_second_phase(ordered, first, counts)
    assert tuned.comparison == Comparison(is_same_order=False, is_same_set=True)
    assert tuned.is_replaced
    resumed = plan_second_phase(as_set, first, counts)
    assert not resumed.is_replaced
    assert resumed.placement is first.placement


def test_v7_experts_are_placed_again_by_the_gates_choices():
    counts = np.array([10, 0, 4, 2])
    assert demands_of(counts, 4) == pytest.approx([2.5, 0, 1.0, 0.5])
    rules = PlacementRules(4)
    first = plan_first_phase(rules, 3, 4, Popularity(6, np.array([1.0, 3.0, 1.0, 1.0])))
    second = plan_second_phase(rules, first, counts)
    assert second.is_replaced
    assert [second.placement.hosts(expert) for expert in (0, 2, 3)] == [(0, 1, 3), (2,), (3,)]
    assert second.placement.shares[3] == pytest.approx([0.5, 0, 0, 0.5])
    assert quotas(counts, second.placement).sum(axis=1).tolist() == [4, 4, 4, 4]


def test_both_tops_of_two_experts_per_token_are_compared():
    rules = PlacementRules(6, experts_per_token=2)
    first = plan_first_phase(rules, 3, 6, Popularity(10, np.array([4.0, 3, 2, 1, 0, 0])))
    assert not plan_second_phase(rules, first, np.array([9, 8, 7, 6, 1, 1])).is_replaced
    assert plan_second_phase(rules, first, np.array([9, 8, 7, 1, 6, 1])).is_replaced


def test_layers_without_estimate_stay_even_and_have_no_second_phase():
    rules = PlacementRules(4)
    for none in (None, Popularity(0, np.zeros(8))):
        first = plan_first_phase(rules, 0, 8, none)
        assert first.placement.experts_of(1) == (2, 3)
        second = plan_second_phase(rules, first, np.array([50, 1, 1, 1, 1, 1, 1, 1]))
        assert second.placement is first.placement
        assert (second.comparison, second.is_replaced) == (None, False)


def test_a_batch_without_tokens_keeps_the_placement():
    rules = PlacementRules(3)
    assert not plan_second_phase(
        rules, plan_first_phase(rules, 2, 3, FULL), np.zeros(3, dtype=int)
    ).is_replaced


def test_random_places_differ_between_layers_and_repeat():
    demands = np.array([0, 1.5, 1.5])
    rules = PlacementRules(3, seed=4)
    places = [rules.place(layer, demands).hosts(0) for layer in range(20)]
    assert set(places) == {(0,), (1,), (2,)}
    assert places == [rules.place(layer, demands).hosts(0) for layer in range(20)]


@pytest.mark.parametrize("counts", [[1, 2], [1, 2, -3]])
def test_wrong_counts_are_refused(counts):
    rules = PlacementRules(3)
    with pytest.raises(ValueError, match="there must be 3 of at least 0"):
        plan_second_phase(rules, plan_first_phase(rules, 2, 3, FULL), np.array(counts))
