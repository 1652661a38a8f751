"""Selection of survivors of a generation (NSGA-II)."""

from __future__ import annotations

from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulation.baselines.against_lyra.non_dominated import crowding, fronts, survivors

members = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=20)


def columns(of: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([float(first) for first, _ in of]), np.array([float(second) for _, second in of])


def test_fronts_of_five_members() -> None:
    first, second = columns([(3, 1), (1, 3), (2, 2), (1, 1), (2, 1)])
    assert fronts(first, second).tolist() == [0, 0, 0, 2, 1]


@given(of=members)
def test_front_is_one_more_than_that_of_the_best_dominating_member(
    of: list[tuple[int, int]],
) -> None:
    front = fronts(*columns(of))
    for member, point in enumerate(of):
        if point in of[:member]:
            assert front[member] == len(of), "an equal member stands before it"
            continue
        better = [
            front[rival]
            for rival, other in enumerate(of)
            if other != point and other[0] >= point[0] and other[1] >= point[1] and other not in of[:rival]
        ]
        assert front[member] == max(better, default=-1) + 1


def test_crowding_is_infinite_at_ends_and_neighbour_distance_within() -> None:
    first, second = columns([(4, 0), (3, 1), (1, 3), (0, 4)])
    apart = crowding(first, second, fronts(first, second))
    assert apart.tolist() == [inf, 1.5, 1.5, inf]


def test_better_fronts_survive_and_of_the_last_one_the_loneliest() -> None:
    assert survivors(np.array([1, 0, 1, 1]), np.array([0.5, inf, inf, 2.0]), 3).tolist() == [1, 2, 3]


@given(of=members)
def test_the_best_in_the_first_objective_always_survives(of: list[tuple[int, int]]) -> None:
    first, second = columns(of)
    front = fronts(first, second)
    surviving = survivors(front, crowding(first, second, front), 1 + len(of) // 2)
    assert first[surviving].max() == first.max()
