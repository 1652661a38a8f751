"""Gandiva: jobs of one size share server sets and take turns."""

from __future__ import annotations

import pytest

from simulation.baselines.against_elasticflow.gandiva_sets import ServerSets, rebalance, spread
from tests.core.building import sizes, snapshot
from tests.policies.asking import asking, given, go_on, replanned, slots


def turns(policy: str, servers: tuple[int, ...], count: int, slot: float, *jobs):
    """Return the jobs that run in each of the first ``count`` slots."""
    asked = snapshot(servers, *jobs, settings=slots(slot))
    ran = []
    for _ in range(count):
        decision, asked = go_on(policy, asked, slot)
        ran.append({id for id, gpus in sizes(decision).items() if gpus})
    return ran


def test_three_jobs_take_turns_on_two_gpus():
    ran = turns("gandiva", (2,), 3, 60.0, *(asking(name) for name in "abc"))
    assert ran[0] == {"a", "b"}
    assert [sum(name in running for running in ran) for name in "abc"] == [2, 2, 2]


def test_jobs_of_different_sizes_get_servers_of_their_own():
    jobs = [asking("wide", 4), asking("left", 1), asking("right", 1)]
    assert given("gandiva", (4, 4), *jobs, settings=slots(60.0)) == {"wide": 4, "left": 1, "right": 1}


def test_a_job_larger_than_a_server_takes_whole_servers():
    jobs = [asking("wide", 8), asking("narrow", 1)]
    assert given("gandiva", (4, 4, 4), *jobs, settings=slots(60.0)) == {"wide": 8, "narrow": 1}


def test_a_turn_is_never_as_short_as_the_pause_it_costs():
    jobs = [asking(name, pause=50.0) for name in "ab"]
    ran = turns("gandiva", (1,), 4, 60.0, *jobs)
    assert ran == [{"a"}, {"a"}, {"b"}, {"b"}]


def test_next_wake_is_set_only_while_a_job_waits():
    asked = snapshot((2,), asking("a"), asking("b"), settings=slots(60.0))
    assert replanned("gandiva", asked).next_wake_at == float("inf")
    crowded = snapshot((2,), *(asking(name) for name in "abc"), settings=slots(60.0))
    assert replanned("gandiva", crowded).next_wake_at == 60.0


def test_published_variant_rotates_only_on_arrivals():
    jobs = [asking(name) for name in "abc"]
    ran = turns("gandiva_artifact", (2,), 3, 61.0, *jobs)
    assert ran[0] == ran[1] == ran[2]
    asked = snapshot((2,), *jobs, settings=slots(60.0))
    assert replanned("gandiva_artifact", asked).next_wake_at == float("inf")


def test_jobs_are_dealt_to_the_least_loaded_set():
    sets = ServerSets(server_gpus=4, servers=2)
    group = sets.group(2)
    for _ in range(2):
        group.extend(filter(None, [sets.opened(2)]))
    spread(group, [0, 1, 2, 3])
    assert sorted(len(server_set.jobs) for server_set in group) == [2, 2]
    assert sets.opened(2) is None


@pytest.mark.parametrize(("as_published", "sets_left"), [(True, 1), (False, 3)])
def test_the_published_rebalancing_takes_sets_for_gpus(as_published, sets_left):
    """Six servers for 20 jobs of one GPU: three are enough, and the published count releases five."""
    sets = ServerSets(server_gpus=8, servers=6)
    group = sets.group(1)
    for _ in range(6):
        group.extend(filter(None, [sets.opened(1)]))
    spread(group, list(range(20)))
    rebalance(sets, as_published=as_published)
    assert len(sets.group(1)) == sets_left
    assert sorted(row for server_set in sets.group(1) for row in server_set.jobs) == list(range(20))
