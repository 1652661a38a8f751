"""The exact program compared with brute force, the other algorithms and every heuristic partition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from communication.cupcake.affine_program import best_affine_fusion
from communication.cupcake.branch_and_bound import Prunings, search
from communication.cupcake.costs import AffineCost, Cost, ThresholdCost
from communication.cupcake.merging import merged_neighbours
from communication.cupcake.pareto_program import best_fusion, not_dominated
from communication.cupcake.partitions import (
    bucket_fusion,
    checked_boundaries,
    even_split,
    layer_wise,
    naive_fusion,
    single_group,
)
from communication.cupcake.problem import FusionProblem
from communication.cupcake.timeline import iteration_seconds
from tests.communication.fusing import fusion, preferred, tried_one_by_one

#: Integers: sums are exact, and many partitions are equally fast.
SMALL = st.integers(0, 6).map(float)
AFFINE = st.builds(AffineCost, SMALL, SMALL)
THRESHOLD = st.builds(ThresholdCost, SMALL, st.sampled_from([1.0, 2.0, 4.0]))


@st.composite
def problems(draw: st.DrawFn, encode: st.SearchStrategy[Cost], most: int = 9) -> FusionProblem:
    tensors = draw(st.integers(1, most))
    backward, sizes = (draw(st.lists(SMALL, min_size=tensors, max_size=tensors)) for _ in range(2))
    return fusion(backward, sizes, draw(encode), draw(AFFINE | THRESHOLD), draw(SMALL))


def drawn(rng: np.random.Generator, affine: bool, most: int = 10) -> FusionProblem:
    tensors = int(rng.integers(1, most + 1))
    fixed, per_byte = rng.exponential(1.0, 2)
    encode = AffineCost(fixed, per_byte / 5) if affine else ThresholdCost(fixed, rng.uniform(0.5, 8.0))
    transfer = AffineCost(rng.exponential(0.5), rng.exponential(0.5))
    return fusion(rng.exponential(2.0, tensors), rng.exponential(3.0, tensors), encode, transfer)


@given(problems(AFFINE | THRESHOLD))
def test_the_exact_program_equals_brute_force_with_fewest_groups(problem: FusionProblem) -> None:
    tried = tried_one_by_one(problem)
    answer = best_fusion(problem)
    assert answer.iteration_seconds == pytest.approx(min(tried.values()), abs=1e-9)
    assert answer.boundaries == preferred(tried)


@given(problems(AFFINE | THRESHOLD))
def test_the_timeline_follows_its_rules(problem: FusionProblem) -> None:
    for boundaries, seconds in tried_one_by_one(problem).items():
        assert iteration_seconds(problem, boundaries) == pytest.approx(seconds, abs=1e-9)


def test_the_search_is_exact_on_random_problems() -> None:
    """Affine and threshold encoders in turn; the other algorithms where they are exact."""
    rng = np.random.default_rng(5)
    for number in range(250):
        problem = drawn(rng, affine=number % 2 == 0)
        best = min(tried_one_by_one(problem).values())
        assert best_fusion(problem).iteration_seconds == pytest.approx(best, rel=1e-9), number
        if number % 2 == 0:
            assert iteration_seconds(problem, best_affine_fusion(problem)) == pytest.approx(best, rel=1e-9)
            assert search(problem).iteration_seconds == pytest.approx(best, rel=1e-9)


@given(problems(AFFINE, most=8), st.booleans(), st.booleans())
def test_the_search_is_exact_with_any_of_its_prunings(
    problem: FusionProblem, bound: bool, safe_fusion: bool
) -> None:
    best = best_fusion(problem).iteration_seconds
    if safe_fusion and not isinstance(problem.transfer, AffineCost):
        with pytest.raises(ValueError, match="affine"):
            search(problem, Prunings(bound, safe_fusion))
        safe_fusion = False
    answer = search(problem, Prunings(bound, safe_fusion), first_tried=())
    assert answer.complete
    assert answer.iteration_seconds == pytest.approx(best, abs=1e-9)
    assert iteration_seconds(problem, answer.boundaries) == pytest.approx(answer.iteration_seconds, abs=1e-9)


def test_the_prunings_skip_branches() -> None:
    rng = np.random.default_rng(1)
    problem = fusion(
        rng.exponential(2.0, 14), rng.exponential(3.0, 14), AffineCost(1, 0.1), AffineCost(1, 0.3)
    )
    visited = [
        search(problem, Prunings(bound, safe_fusion), first_tried=()).visited
        for bound, safe_fusion in ((True, True), (True, False), (False, True), (False, False))
    ]
    assert visited[3] == 2**14 - 1
    assert visited[0] < min(visited[1:3])
    assert max(visited[1:3]) < visited[3]
    cut_short = search(problem, Prunings(False, False), most_visited=100)
    assert (cut_short.visited, cut_short.complete) == (100, False)


@given(problems(AFFINE | THRESHOLD, most=40), st.integers(1, 40), st.floats(0.5, 50.0))
def test_no_heuristic_beats_the_search(problem: FusionProblem, groups: int, bucket_bytes: float) -> None:
    best = best_fusion(problem).iteration_seconds
    tensors = problem.tensors
    for boundaries in (
        layer_wise(tensors),
        single_group(tensors),
        even_split(tensors, groups),
        naive_fusion(tensors, groups),
        bucket_fusion(problem.sizes_bytes, bucket_bytes),
    ):
        assert checked_boundaries(boundaries, tensors) == boundaries
        assert best <= iteration_seconds(problem, boundaries) + 1e-9


@given(st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=30))
def test_all_undominated_pairs_are_kept(pairs: list[tuple[float, float]]) -> None:
    first, second = np.array(pairs).T
    undominated_pairs = [(first[one], second[one]) for one in not_dominated(first, second)]
    undominated = {
        pair for pair in pairs if not any(o != pair and o[0] <= pair[0] and o[1] <= pair[1] for o in pairs)
    }
    assert undominated_pairs == sorted(undominated)


@given(problems(AFFINE | THRESHOLD, most=40), st.integers(3, 12))
def test_merged_neighbours_are_the_same_model(problem: FusionProblem, most: int) -> None:
    merged, ends = merged_neighbours(problem, most)
    assert merged.tensors == len(ends) <= max(most, 1)
    assert checked_boundaries(ends, problem.tensors) == ends
    assert merged.sizes_bytes.sum() == problem.sizes_bytes.sum()
    assert merged.backward_seconds.sum() == pytest.approx(problem.backward_seconds.sum())
    boundaries = best_fusion(merged).boundaries
    whole = tuple(ends[boundary - 1] for boundary in boundaries)
    assert iteration_seconds(merged, boundaries) == pytest.approx(iteration_seconds(problem, whole))


def test_merging_neighbours_bounds_bytes_and_times() -> None:
    backward, sizes = [0.0] * 50 + [1.0] * 50, [1.0] * 50 + [0.0] * 50
    problem = fusion(backward, sizes, AffineCost(1.0, 1.0), AffineCost(1.0, 1.0))
    merged, ends = merged_neighbours(problem, 11)
    assert 5 <= len(ends) <= 11
    assert merged.sizes_bytes.max() <= 12.0
    assert merged.backward_seconds.max() <= 12.0


def test_heuristic_partitions_by_hand() -> None:
    assert even_split(10, 3) == (4, 7, 10)
    assert even_split(3, 9) == (1, 2, 3)
    assert naive_fusion(10) == (5, 10)
    assert naive_fusion(11, 3) == (3, 6, 11)
    assert bucket_fusion(np.array([3.0, 3.0, 1.0, 9.0, 2.0]), 6.0) == (2, 4, 5)
    assert bucket_fusion(np.array([1.0, 1.0]), 2.0) == (2,)
    assert layer_wise(3) == (1, 2, 3)
