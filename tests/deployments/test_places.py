"""Replicas are packed onto few servers, and replaced one at a time without a drop in capacity."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.core.places import (
    Home,
    Packing,
    choose_place,
    choose_to_drain,
    choose_to_vacate,
    pack,
    servers_used,
)
from deployments.core.replacing import Standing, next_steps


@given(st.lists(st.integers(0, 6), max_size=6), st.integers(1, 4))
def test_missing_replicas_need_at_least_the_servers_used(replicas: list[int], gpus: int) -> None:
    missing = {str(number): count for number, count in enumerate(replicas)}
    used = servers_used(replicas, gpus)
    packing = pack(missing, [], gpus)
    assert packing.lacking >= ceil(used)
    homes = [Home(server, tuple(range(gpus))) for server in range(1, packing.lacking + 2)]
    assert pack(missing, homes, gpus) == Packing(0, (packing.lacking + 1,))


def test_replicas_find_room_before_servers_are_added() -> None:
    homes = [Home(1, (), frozenset({"a", "b"})), Home(2, (21,), frozenset({"a"})), Home(3, (30, 31))]
    assert pack({"b": 1}, homes, 2) == Packing(0, (3,))
    assert pack({"a": 3}, homes, 2) == Packing(2, ())
    assert pack({"a": 2, "c": 2}, homes, 2) == Packing(1, ())


def test_a_server_is_vacated_if_others_that_serve_have_room() -> None:
    roomy = Home(1, (11,), frozenset({"a"}))
    assert choose_to_vacate([roomy, Home(2, (21,), frozenset({"b"})), Home(3, (30, 31))]) == 2
    assert choose_to_vacate([roomy, Home(2, (21,), frozenset({"a"})), Home(3, (30, 31))]) is None
    assert choose_to_vacate([roomy, Home(3, (30, 31))]) is None


@pytest.mark.parametrize(
    ("demands", "gpus", "words"), [([-1.0], 1, "negative"), ([1.0], 0, "gpus_per_server")]
)
def test_servers_used_names_the_invalid_argument(demands: list[float], gpus: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        servers_used(demands, gpus)


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
