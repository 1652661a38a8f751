"""Replicas are packed onto few servers, and replaced one at a time without a drop in capacity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.core.places import Home, choose_place, choose_to_drain, servers_needed
from deployments.core.replacing import Standing, next_steps


@given(st.lists(st.integers(0, 6), max_size=6), st.integers(1, 4))
def test_replicas_fit_on_the_servers_that_they_need(replicas: list[int], gpus: int) -> None:
    """Dealt out in turn over that many servers, no two replicas of a deployment share one."""
    needed = servers_needed(replicas, gpus)
    loads: list[list[int]] = [[] for _ in range(needed)]
    position = 0
    for deployment, count in enumerate(replicas):
        for _ in range(count):
            loads[position % needed].append(deployment)
            position += 1
    assert all(len(load) <= gpus and len(set(load)) == len(load) for load in loads)
    fewer = needed - 1
    assert fewer < 0 or fewer < max(replicas, default=0) or sum(replicas) > fewer * gpus


def test_a_server_that_serves_already_is_preferred() -> None:
    homes = [Home(1, (10, 11)), Home(2, (21,), frozenset({"b"})), Home(3, (), frozenset({"b", "c"}))]
    assert choose_place("a", homes) == (2, 21)
    assert choose_place("b", homes) == (1, 10)
    assert choose_place("b", homes[1:]) is None


def test_the_replica_on_the_emptiest_server_drains_first() -> None:
    assert choose_to_drain([("x", 1), ("y", 2), ("z", 3)], {1: 2, 2: 1, 3: 2}) == "y"
    assert choose_to_drain([("x", 1), ("y", 2)], {1: 1, 2: 1}) == "y"
    with pytest.raises(ValueError, match="no replica"):
        choose_to_drain([], {})


@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 3), st.booleans(), st.integers(1, 2**30 - 1))
def test_a_replacement_ends_and_keeps_its_capacity(
    wanted: int, old: int, places: int, steady: bool, seed: int
) -> None:
    """Old replicas serve; new ones become ready at random until no step is left."""
    present = [Standing(f"old-{number}", is_newest=False, is_serving=True) for number in range(old)]
    free, started, least = places, 0, min(old, wanted)
    for round_number in range(200):
        steps = next_steps(present, wanted, free)
        assert steps.start <= free
        for key in steps.drain:
            gone = next(standing for standing in present if standing.key == key)
            present.remove(gone)
            free += 1
        for _ in range(steps.surplus):
            present.remove(
                next(standing for standing in reversed(present) if standing.is_newest and standing.is_serving)
            )
            free += 1
        for _ in range(steps.start):
            started += 1
            free -= 1
            present.append(Standing(f"new-{started}", is_newest=True, is_serving=False))
        serving = sum(standing.is_serving for standing in present)
        # Without a free place capacity drops by one, never to none.
        assert serving >= (least if places else max(min(1, least), least - 1))
        done = not steps.start and not steps.drain and not steps.surplus
        if done and all(standing.is_serving for standing in present):
            break
        if steady or (seed >> (round_number % 30)) & 1:
            present = [Standing(standing.key, standing.is_newest, True) for standing in present]
    assert all(standing.is_serving for standing in present)
    if old == 1 and not places:
        assert [standing.key for standing in present] == ["old-0"]
        assert "no place" in next_steps(present, wanted, free).blocked
    elif old == 0 and places < wanted:
        assert len(present) == places
    else:
        assert all(standing.is_newest for standing in present)
        assert len(present) == min(wanted, old + places)


def test_all_replicas_drain_if_none_is_wanted() -> None:
    present = [
        Standing("a", is_newest=True, is_serving=True),
        Standing("b", is_newest=False, is_serving=False),
    ]
    assert set(next_steps(present, 0, 5).drain) == {"a", "b"}
    with pytest.raises(ValueError, match="negative"):
        next_steps(present, -1, 0)
