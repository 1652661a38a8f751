"""Distance of each method from the fewest possible preemptions, on instances small enough for exhaustive
search."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from scheduling.core.lyra.reclaiming.choosing import ReclaimGroup, choose_servers
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from scheduling.core.lyra.reclaiming.optimum import fewest_preemptions
from scheduling.core.lyra.reclaiming.question import consequences, layout_of
from tests.core.lyra.reclaim_layouts import (
    asking_for,
    fewest_by_trying_everything,
    question_of,
    random_question,
)

INSTANCES = 300


def instances(number, **facts):
    rng = np.random.default_rng(20_24)
    return [random_question(rng, **facts) for _ in range(number)]


def preempted(question, method):
    return choose_servers(question, method).preempted.size


def test_lyra_is_near_the_optimum_and_improved_reaches_it():
    fewest, lyra, improved = [], [], []
    for question in instances(INSTANCES, elastic=True):
        fewest.append(fewest_by_trying_everything(question))
        lyra.append(preempted(question, ReclaimMethod.LYRA))
        improved.append(preempted(question, ReclaimMethod.IMPROVED))
    optimum, greedy = np.array(fewest), np.array(lyra)
    assert (optimum <= greedy).all()
    assert (greedy > optimum).any(), "the instances must be able to tell"
    assert (greedy[optimum == 0] == 0).all()
    some = optimum > 0
    assert (greedy[some] / optimum[some]).mean() <= 1.05
    assert improved == fewest


def test_program_finds_the_optimum_of_exhaustive_search():
    for question in instances(100, elastic=True):
        reclaim = choose_servers(question, ReclaimMethod.OPTIMAL)
        assert not reclaim.limit_hit
        assert reclaim.preempted.size == fewest_by_trying_everything(question)


def test_one_server_is_chosen_optimally():
    for question in instances(100, elastic=True):
        single = asking_for(question, 1)
        assert preempted(single, ReclaimMethod.LYRA) == fewest_by_trying_everything(single)


def best_by_trying_everything(question, free):
    """Fewest jobs preempted, then fewest of their GPUs on servers that stay, over all choices with the
    ``free`` servers."""
    layout = layout_of(question.fleet, question.workers, question.gpus_per_worker)
    others = np.setdiff1d(np.flatnonzero(layout.candidate), free).tolist()
    outcomes = (
        consequences(layout, np.array([*free, *chosen], dtype=np.int64))
        for chosen in combinations(others, question.servers - len(free))
    )
    return min((outcome.preempted.size, outcome.collateral_gpus) for outcome in outcomes)


def test_optimum_frees_fewest_gpus_among_minimal_preemptions():
    compared = better = 0
    for question in instances(150, elastic=True):
        optimal = choose_servers(question, ReclaimMethod.OPTIMAL)
        if not optimal.preempted.size or question.servers > optimal.returned.size:
            continue
        free = optimal.returned[optimal.group != ReclaimGroup.PREEMPTION]
        best = best_by_trying_everything(question, free)
        assert (optimal.preempted.size, optimal.collateral_gpus) == best
        compared += 1
        lyra = choose_servers(question, ReclaimMethod.LYRA)
        better += best < (lyra.preempted.size, lyra.collateral_gpus)
    assert compared > 50
    assert better > 0, "the instances must be able to tell"


def test_truncated_search_reports_its_limit_and_a_bound():
    """Every job has three of thirty servers, drawn evenly, so all servers look alike."""
    rng = np.random.default_rng(0)
    rows = [{int(server): (1, 0) for server in rng.choice(30, 3, replace=False)} for _ in range(75)]
    question = question_of(rows, 12, servers=30)
    layout = layout_of(question.fleet, question.workers, question.gpus_per_worker)
    nothing = np.zeros(0, dtype=np.int64)
    start = np.flatnonzero(layout.candidate)[:12]
    optimum = fewest_preemptions(layout, layout.candidate, nothing, [start], most_nodes=0)
    assert optimum.limit_hit
    assert optimum.server.size == 12
    assert 1 <= optimum.bound <= consequences(layout, start).preempted.size
