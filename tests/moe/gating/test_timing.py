"""FLOPs, times and SIM-A: published laws, worked examples W6 and W7, and the reference program's results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.gating.curriculum import Curriculum, deal
from moe.gating.curriculum_timing import OrderTimes, SamplePopulation, epoch_time, simulate_orders
from moe.gating.flops import LayerSizes, flops_per_token, implied_share, interpolate, measured_flops
from moe.gating.timing import (
    MEASURED_SHARES,
    MEASURED_TIMES,
    Waiting,
    implied_moe_share,
    layer_time,
    step_time,
)

SHARES = st.floats(0, 1)


def test_w6_layer_times():
    shares = (0.113, 0.17, 0.256, 0.4, 0.65)
    expected = (0.72085, 0.7465, 0.789867, 0.866667, 0.945)
    assert layer_time(shares) == pytest.approx(expected, abs=1e-6)
    assert layer_time(MEASURED_SHARES).tolist() == list(MEASURED_TIMES)


def four_samples(order, ranks: int) -> float:
    shares = np.array([[0.0], [0.0], [0.4], [0.4]])
    return epoch_time(shares, deal(np.array(order), ranks, 2 // ranks), moe_share=1.0)


def test_w7_grouping_helps_only_ranks_that_wait():
    mixed, grouped = (0, 2, 1, 3), (0, 1, 2, 3)
    assert four_samples(mixed, ranks=1) == pytest.approx(0.76)
    assert four_samples(grouped, ranks=1) == pytest.approx(0.768333, abs=1e-6)
    assert four_samples(mixed, ranks=2) == pytest.approx(0.866667, abs=1e-6)
    assert four_samples(grouped, ranks=2) == pytest.approx(0.768333, abs=1e-6)


def test_published_step_time_implies_a_share_of_moe_layers():
    """Sentiment: a step takes 0.77 where a layer takes 0.72085."""
    assert implied_moe_share(0.77, float(layer_time(0.113))) == pytest.approx(0.82, abs=5e-3)


@given(st.lists(SHARES, min_size=6, max_size=6), SHARES)
def test_slowest_rank_is_never_faster_than_the_mean(shares, moe_share):
    ranks = np.array(shares).reshape(3, 2)
    slowest = step_time(ranks, moe_share)
    assert step_time(ranks, moe_share, Waiting.MEAN) - 1e-12 <= slowest <= 1 + 1e-9
    assert slowest >= 1 - 0.33 * moe_share - 1e-9


@pytest.mark.parametrize(
    ("top1", "top2", "printed", "share"),
    [
        (2.18, 3.28, 2.30, 0.109),
        (10.6, 15.9, 11.5, 0.170),
        (2.18, 3.27, 2.36, 0.165),
        (79, 119, 87, 0.200),
        (3.4, 4.9, 3.73, 0.220),
        (3.4, 4.9, 3.76, 0.240),
    ],
)
def test_printed_flops_imply_shares(top1, top2, printed, share):
    assert implied_share(top1, top2, printed) == pytest.approx(share, abs=1e-3)
    assert interpolate(top1, top2, implied_share(top1, top2, printed)) == pytest.approx(printed)


def test_flops_of_published_layers():
    bert = LayerSizes(width=768, hidden=3072, sequence=128, experts=0)
    gpt2 = LayerSizes(width=1024, hidden=4096, sequence=1024, experts=0)
    assert bert.expert_flops == 4 * 768 * 3072
    ratios = [flops_per_token(sizes, 2) / flops_per_token(sizes, 1) for sizes in (bert, gpt2)]
    assert ratios == pytest.approx([1.65, 1.57], abs=0.005)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=6))
def test_flops_law_is_exact_for_measured_shares(layers):
    sizes = LayerSizes(16, 64, 32, 8)
    tokens = [tokens for tokens, _ in layers]
    two = [min(pair) for pair in layers]
    ends = (flops_per_token(sizes, 1), flops_per_token(sizes, 2))
    expected = sum(tokens) * interpolate(*ends, sum(two) / sum(tokens))
    assert measured_flops(sizes, tokens, two) == pytest.approx(expected)


#: Mean share, concentration, layers, samples per rank, share of MoE layers; random, cosine and magnitude
#: times by the independent reference program (docs/reproduction/README.md).
SETTINGS = {
    "usual": ((0.113, 3, 12, 3, 0.82), (0.836, 0.822, 0.784)),
    "varied": ((0.113, 1, 12, 3, 0.82), (0.861, 0.826, 0.780)),
    "alike": ((0.113, 10, 12, 3, 0.82), (0.812, 0.809, 0.785)),
    "one each": ((0.113, 3, 12, 1, 0.82), (0.877, 0.853, 0.792)),
    "one each, varied": ((0.113, 1, 12, 1, 0.82), (0.904, 0.852, 0.786)),
    "many each": ((0.113, 3, 12, 24, 0.82), (0.793, 0.787, 0.779)),
    "text": ((0.218, 3, 24, 1, 0.48), (0.961, 0.949, 0.905)),
}


def simulate(name: str, waiting: Waiting = Waiting.SLOWEST):
    (mean, concentration, layers, rank_samples, moe_share), _ = SETTINGS[name]
    population = SamplePopulation(mean, concentration, layers)
    return simulate_orders(population, moe_share=moe_share, samples_per_rank=rank_samples, waiting=waiting)


@pytest.mark.parametrize("name", SETTINGS)
def test_times_equal_those_of_the_reference_program(name):
    times = simulate(name)
    assert (times.random, times.cosine, times.magnitude) == pytest.approx(SETTINGS[name][1], abs=0.005)
    assert times.magnitude < times.cosine < times.random


def test_inflation_is_the_extra_time_of_the_random_order():
    times = OrderTimes(random=0.9, cosine=0.8, magnitude=0.75)
    assert [times.inflation(curriculum) for curriculum in Curriculum] == pytest.approx([0.125, 0.2])


def test_order_saves_time_only_through_the_slowest_rank():
    times = simulate("usual", Waiting.MEAN)
    assert (times.random, times.cosine, times.magnitude) == pytest.approx((0.773, 0.773, 0.772), abs=1e-3)


def test_gains_grow_with_heterogeneity_and_small_batches():
    for names in (("alike", "usual", "varied"), ("many each", "usual", "one each")):
        gains = [simulate(name).inflation(Curriculum.MAGNITUDE) for name in names]
        assert gains == sorted(gains)


def test_wrong_sizes_shares_and_populations_are_refused():
    with pytest.raises(ValueError, match="width is 0; it must be at least 1"):
        LayerSizes(0, 1, 1, 1)
    with pytest.raises(ValueError, match="between 0 and the layer's tokens"):
        measured_flops(LayerSizes(1, 1, 1, 1), [1], [2])
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        layer_time(1.5)
    with pytest.raises(ValueError, match="moe_share is 2"):
        step_time(np.zeros((1, 1)), 2)
    with pytest.raises(ValueError, match=r"the layer takes 1\.0 of top-2's time"):
        implied_moe_share(0.9, 1.0)
    with pytest.raises(ValueError, match="mean_share is 1"):
        SamplePopulation(1.0, 3)
    with pytest.raises(ValueError, match="too few samples"):
        epoch_time(np.zeros((1, 1)), deal(np.arange(1), 2, 1), 0.5)
