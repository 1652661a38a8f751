"""Placements ranked by predicted all-to-alls: order of preference, ties, and the search among many."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.moesys.all_to_all import Algorithm, LinkRates
from moe.moesys.placement_score import (
    FreeServer,
    StepTraffic,
    best_fitting,
    rank_placements,
    score_placement,
    score_subsets,
)

TRAFFIC = StepTraffic(layers=12, tokens_per_rank=1024, experts_per_token=1, hidden=4096, dense=1e9)
RATES = LinkRates()


def servers(*free, cluster="a"):
    return [FreeServer(f"{cluster}{number}", gpus, cluster) for number, gpus in enumerate(free)]


def best(free, gpus):
    return rank_placements(free, gpus, TRAFFIC, RATES)[0]


def test_one_server_comes_first():
    ranked = rank_placements(servers(8, 8, 4, 4), 8, TRAFFIC, RATES)
    assert ranked[0].servers == ("a0",)
    assert ranked[0].algorithm is Algorithm.FLAT
    assert [len(placement.servers) for placement in ranked[:4]] == [1, 1, 2, 2]


def test_two_full_servers_beat_four_half_full_ones():
    scores = [
        score_placement([(server, gpus) for server in servers(*[8] * count)], TRAFFIC, RATES).score
        for count, gpus in ((2, 8), (4, 4), (8, 2))
    ]
    assert scores == sorted(scores)
    assert best(servers(8, 8, 8, 8), 16).gpus == (8, 8)


def test_servers_of_one_cluster_come_before_those_of_two():
    free = servers(8, cluster="a") + servers(8, 8, cluster="b")
    ranked = rank_placements(free, 16, TRAFFIC, RATES)
    assert ranked[0].servers == ("b0", "b1")
    assert ranked[1].score - ranked[0].score == pytest.approx(1e-3)
    assert [placement.clusters for placement in ranked[:2]] == [1, 2]


def test_equal_parts_come_before_unequal_ones():
    ranked = rank_placements(servers(6, 4, 4), 8, TRAFFIC, RATES)
    assert ranked[0].gpus == (4, 4)
    assert ranked[0].servers == ("a1", "a2")  # nothing is left over
    uneven = rank_placements(servers(6, 2), 8, TRAFFIC, RATES)[0]
    assert (uneven.gpus, uneven.algorithm, uneven.hierarchical_seconds) == ((6, 2), Algorithm.FLAT, None)
    assert uneven.score > ranked[0].score


def test_too_few_gpus_have_no_placement():
    assert rank_placements(servers(4, 2), 8, TRAFFIC, RATES) == ()
    assert rank_placements([], 1, TRAFFIC, RATES) == ()


FREE = st.lists(st.integers(0, 8), min_size=1, max_size=8)


@settings(max_examples=20)
@given(FREE, st.integers(1, 8), st.integers(1, 3))
def test_the_search_among_many_finds_the_best_of_few(free, gpus, clusters):
    """The search for more than 12 servers, on at most 8, against all subsets."""
    held = [
        FreeServer(f"s{number}", idle_gpus, f"r{number % clusters}") for number, idle_gpus in enumerate(free)
    ]
    exact = rank_placements(held, gpus, TRAFFIC, RATES)
    usable = sorted((server for server in held if server.free_gpus), key=lambda server: server.id)
    fast = list(score_subsets(best_fitting(usable, gpus), gpus, TRAFFIC, RATES))
    assert bool(fast) == bool(exact)
    if exact and len(set(exact[0].gpus)) == 1:
        best_score = min(placement.score for placement in fast)
        assert best_score == pytest.approx(exact[0].score)


@given(st.lists(st.integers(1, 8), min_size=13, max_size=40), st.integers(1, 64))
@settings(max_examples=20)
def test_placements_never_exceed_the_free_gpus(free, gpus):
    for placement in rank_placements(servers(*free), gpus, TRAFFIC, RATES):
        assert sum(placement.gpus) == gpus
        for name, held in zip(placement.servers, placement.gpus, strict=True):
            assert 1 <= held <= free[int(name[1:])]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FreeServer("a", -1), "free_gpus"),
        (lambda: StepTraffic(0, 1, 1, 1), "layers"),
        (lambda: StepTraffic(1, -1, 1, 1), "tokens_per_rank"),
        (lambda: rank_placements(servers(1), 0, TRAFFIC, RATES), "gpus"),
        (lambda: rank_placements([FreeServer("a", 1)] * 2, 1, TRAFFIC, RATES), "servers"),
        (lambda: score_placement([(FreeServer("a", 1), 2)], TRAFFIC, RATES), "gpus of a"),
    ],
)
def test_an_error_names_the_argument(make, field):
    with pytest.raises(ValueError, match=field):
        make()
