"""SIM-I: batches of skewed and predictable tokens under each placement."""

from __future__ import annotations

import numpy as np
import pytest

from moe.lina.expert_paths import profile_paths
from moe.lina.expert_placement import even_placement
from moe.lina.inference_batches import LayerTimes, Serving, placement_imbalance, serve
from moe.lina.popularity import Estimate
from moe.lina.synthetic_routing import Routing, RoutingModel
from moe.lina.two_phases import Match, PlacementRules

RULES = PlacementRules(16, match=Match.SET)
EXPERTS = (16,) * 12


@pytest.fixture(scope="module")
def tokens():
    return Routing(RoutingModel()).draw_tokens(20_000, seed=0)


@pytest.fixture(scope="module")
def batches():
    routing = Routing(RoutingModel())
    return [routing.draw_batch(1024, seed) for seed in range(8)]


@pytest.fixture(scope="module")
def profile(tokens):
    return profile_paths(tokens, EXPERTS)


def test_popularity_is_as_skewed_as_published(batches):
    counts = [np.bincount(batch[:, layer], minlength=16) for batch in batches for layer in range(12)]
    # Published: 5.56 with 16 experts.
    assert 4.5 < np.median([count.max() / max(1, count.min()) for count in counts]) < 8.0


def test_longer_paths_estimate_better(tokens, batches):
    profiles = [profile_paths(tokens, EXPERTS, length) for length in (1, 3, 6)]
    accuracies = [serve(Serving.LINA, batches, RULES, profile).set_accuracy for profile in profiles]
    assert accuracies[0] + 0.15 < accuracies[1] < accuracies[2]


def test_lina_is_faster_than_placing_without_estimates(batches, profile):
    lina, without, even = (
        serve(serving, batches, RULES, profile).percentile(50)
        for serving in (Serving.LINA, Serving.WITHOUT_ESTIMATION, Serving.EVEN)
    )
    assert 1 < lina < without < even


def test_rescaled_estimates_place_better_than_literal_ones(batches, profile):
    full, norm, literal = (
        serve(Serving.LINA, batches, RULES, profile, estimate=estimate)
        for estimate in (Estimate.FULL, Estimate.NORM, Estimate.LITERAL)
    )
    assert norm.percentile(50) < literal.percentile(50) - 0.05
    assert full.first_imbalance < norm.first_imbalance < literal.first_imbalance - 0.5


def test_second_phase_shortens_the_tail_if_estimates_are_bad(tokens, batches):
    short = profile_paths(tokens, EXPERTS, 1)
    lina, without = (
        serve(serving, batches, RULES, short).percentile(95)
        for serving in (Serving.LINA, Serving.WITHOUT_FINE_TUNING)
    )
    assert lina < without - 0.05


def test_first_layers_are_placed_evenly(batches, profile):
    served = serve(Serving.LINA, batches[:2], RULES, profile)
    for batch, layers in zip(batches, served.batches, strict=False):
        assert [layer.comparison is None for layer in layers] == [True] * 3 + [False] * 9
        for number in range(3):
            counts = np.bincount(batch[:, number], minlength=16)
            assert layers[number].imbalance == placement_imbalance(even_placement(16, 16), counts)
            assert layers[number].time == LayerTimes().layer(layers[number].imbalance)


def test_even_tokens_take_the_ideal_time(profile):
    even = np.tile(np.arange(16)[:, None], (8, 12))
    served = serve(Serving.EVEN, [even], RULES, profile, times=LayerTimes(1.0, 2.0, 3.0))
    assert served.relative_times() == pytest.approx([1.0])
    assert served.ideal_time == pytest.approx(12 * 6.0)
    assert np.isnan(served.set_accuracy)


def test_overheads_are_those_of_the_second_phase(batches, profile):
    for layer in serve(Serving.LINA, batches[:2], RULES, profile).batches[0][3:]:
        overhead = layer.time - LayerTimes().layer(layer.imbalance)
        assert overhead == pytest.approx(6.2 if layer.is_replaced else 1.45)


def test_same_seed_draws_the_same_tokens():
    first, again, other = (Routing(RoutingModel()).draw_batch(64, seed) for seed in (5, 5, 6))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"first_predictability": 1.5}, "first_predictability is 1.5; it must lie in 0 to 1"),
        ({"types": 0}, "types is 0; it must be at least 1"),
        ({"concentration": 0.0}, "concentration is 0; it must be above 0"),
    ],
)
def test_wrong_routing_models_are_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        RoutingModel(**changes)


def test_serving_nothing_is_refused(profile):
    with pytest.raises(ValueError, match="batches are empty"):
        serve(Serving.EVEN, [], RULES, profile)
