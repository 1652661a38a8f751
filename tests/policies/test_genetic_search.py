"""Pollux's genetic search, on placements whose worth can be worked out by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.baselines.against_lyra.genetic_operators import (
    Question,
    WorkerCounts,
    cross,
    merit,
    mutate,
    repair,
)
from simulation.baselines.against_lyra.genetic_search import Budget, search
from tests.policies.questions_of_pollux import is_allowed, question, questions

SMALL = Budget(population=20, generations=10)
NO_SEEDS = 0


def search_best(problem: Question, budget: Budget = SMALL, seed: int = 1) -> WorkerCounts:
    best: WorkerCounts = search(
        problem, problem.present[None][:NO_SEEDS], budget, np.random.default_rng(seed)
    ).members[0]
    return best


def fitness(problem: Question, placement: WorkerCounts) -> float:
    return float(merit(problem, placement)[0])


def repaired(problem: Question, placement: WorkerCounts, seed: int = 1) -> WorkerCounts:
    after = placement.copy()
    repair(problem, after, np.random.default_rng(seed))
    return after


def matrix(*rows: list[int]) -> WorkerCounts:
    return np.array(rows, dtype=np.int16)


def test_fitness_is_the_power_mean_of_discounted_speed_ups() -> None:
    """Job 0 stays at 2; job 1 grows from 1 to 4, discounted by half; job 2 waits."""
    problem = question([8, 8], [(1, 8)] * 3, present=[[2, 0, 0], [0, 1, 0]], discount=[0.1, 0.5, 1.0])
    placement = matrix([2, 0, 0], [0, 4, 0])
    by_hand = 3 / (1 / (2 + 0.001) + 1 / (4 * 0.5 + 0.001) + 1 / 0.001)
    assert fitness(problem, placement) == pytest.approx(by_hand)


def test_a_job_that_moves_with_as_many_workers_is_discounted_too() -> None:
    problem = question([4, 4], [(1, 4)], present=[[2], [0]], discount=[0.25])
    assert fitness(problem, matrix([0], [2])) == pytest.approx(0.5 + 0.001)
    assert fitness(problem, matrix([2], [0])) == pytest.approx(2.0 + 0.001)


def test_the_second_objective_is_speed_per_gpu_of_servers_in_use() -> None:
    problem = question([4, 8], [(1, 8), (1, 8)], width=[1, 2])
    assert merit(problem, matrix([2, 0], [0, 0]))[1] == pytest.approx(2 / 4)
    assert merit(problem, matrix([2, 0], [0, 3]))[1] == pytest.approx((2 + 3 * 2) / 12)


class TestRepair:
    def test_the_first_of_two_jobs_on_several_servers_keeps_a_server(self) -> None:
        problem = question([8, 8, 8], [(1, 8), (1, 8), (1, 8)])
        after = repaired(problem, matrix([2, 2, 1], [2, 2, 0], [0, 2, 0]))
        assert after.tolist() == [[2, 0, 1], [2, 0, 0], [0, 2, 0]]

    def test_a_full_server_keeps_the_jobs_that_come_first(self) -> None:
        problem = question([4], [(1, 3), (1, 3), (1, 3)])
        assert repaired(problem, matrix([3, 3, 3])).tolist() == [[3, 1, 0]]

    def test_a_job_below_its_minimum_gets_no_workers(self) -> None:
        problem = question([4], [(2, 3), (2, 3)])
        assert repaired(problem, matrix([3, 3])).tolist() == [[3, 0]]

    def test_a_job_falls_back_to_an_allowed_number_of_workers(self) -> None:
        problem = question([8], [(1, 8)], numbers=[[1, 2, 4, 8]])
        assert repaired(problem, matrix([7])).tolist() == [[4]]

    @given(problem=questions(), seed=st.integers(0, 99))
    def test_repair_makes_any_placement_allowed_and_is_idempotent(self, problem: Question, seed: int) -> None:
        after = repaired(problem, problem.present, seed)
        assert is_allowed(problem, after)
        assert (after <= problem.present).all()
        assert repaired(problem, after, seed + 1).tolist() == after.tolist()

    @given(problem=questions(), seed=st.integers(0, 99))
    def test_repair_after_mutation_gives_an_allowed_placement(self, problem: Question, seed: int) -> None:
        draw = np.random.default_rng(seed)
        placement = repaired(problem, problem.present, seed)
        for _ in range(5):
            mutate(problem, placement, draw)
            repair(problem, placement, draw)
            assert is_allowed(problem, placement)


def test_children_take_first_jobs_of_one_parent_and_rest_of_the_other() -> None:
    first, second = matrix([1, 2, 3], [4, 5, 6]), matrix([7, 8, 9], [1, 1, 1])
    child, sibling = np.zeros_like(first), np.zeros_like(first)
    cross(first, second, 1, child, sibling)
    assert child.tolist() == [[1, 8, 9], [4, 1, 1]]
    assert sibling.tolist() == [[7, 2, 3], [1, 5, 6]]


@given(problem=questions(), seed=st.integers(0, 99))
def test_search_result_is_allowed_and_no_worse_than_the_present(problem: Question, seed: int) -> None:
    problem = problem._replace(present=repaired(problem, problem.present))
    best = search_best(problem, SMALL, seed)
    assert is_allowed(problem, best)
    assert fitness(problem, best) >= fitness(problem, problem.present)
    assert best.tolist() == search_best(problem, SMALL, seed).tolist()


@given(problem=questions())
def test_present_placement_stays_where_no_better_one_is_found(problem: Question) -> None:
    best = search_best(problem)
    again = search(problem, best[None], Budget(population=4, generations=1), np.random.default_rng(5))
    assert again.fitness[0] >= fitness(problem, best)
    assert (np.diff(again.fitness) <= 0).all()


@given(
    capacity=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    ranges=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 2)).map(lambda range: (range[0], sum(range))),
        min_size=2,
        max_size=2,
    ),
    discount=st.lists(st.sampled_from([0.0, 0.3, 0.9, 1.0]), min_size=2, max_size=2),
    present=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=2, max_size=2),
)
def test_two_jobs_on_two_servers_are_placed_optimally(
    capacity: list[int], ranges: list[tuple[int, int]], discount: list[float], present: list[list[int]]
) -> None:
    problem = question(capacity, ranges, discount=discount, present=present)
    problem = problem._replace(present=repaired(problem, problem.present))
    every = (np.array(entries, dtype=np.int16).reshape(2, 2) for entries in product(range(4), repeat=4))
    best = max(fitness(problem, placement) for placement in every if is_allowed(problem, placement))
    assert fitness(problem, search_best(problem, Budget())) == pytest.approx(best)


def test_gpus_are_shared_so_that_the_harmonic_mean_is_greatest() -> None:
    assert search_best(question([8], [(1, 8), (1, 8)]), Budget()).sum(axis=0).tolist() == [4, 4]
    assert search_best(question([5], [(1, 1), (1, 8)]), Budget()).sum(axis=0).tolist() == [1, 4]


def test_a_change_that_gains_less_than_its_restart_is_not_made() -> None:
    """Four GPUs each would be slightly better, but every change halves a speed-up."""
    discounted = question([8], [(1, 8), (1, 8)], present=[[3, 5]], discount=[0.5, 0.5])
    assert search_best(discounted, Budget()).tolist() == [[3, 5]]
    undiscounted = discounted._replace(discount=np.ones(2))
    assert search_best(undiscounted, Budget()).tolist() == [[4, 4]]


@pytest.mark.parametrize("seed", range(5))
def test_no_job_moves_needlessly_when_a_job_arrives(seed: int) -> None:
    """Six jobs have their maximum on a half-empty cluster; the seventh starts beside them."""
    present = np.zeros((6, 7), dtype=np.int16)
    present[range(6), range(6)] = 4
    problem = question([8] * 6, [(4, 4)] * 7, present=present.tolist(), discount=[0.99] * 6 + [1.0])
    best = search_best(problem, Budget(), seed)
    assert best[:, :6].tolist() == present[:, :6].tolist()
    assert best.sum(axis=0).tolist() == [4] * 7


def test_a_job_of_several_whole_servers_finds_them() -> None:
    problem = question([8, 8, 8], [(2, 2), (1, 2)], width=[8, 4])
    best = search_best(problem, Budget())
    assert best.sum(axis=0).tolist() == [2, 2]


def test_large_clusters_are_searched_for_fewer_generations() -> None:
    problem = question([8, 8], [(1, 8)] * 5)
    assert Budget().generations_for(problem) == 100
    assert Budget(cells=5_000).generations_for(problem) == 5
    assert Budget(cells=1).generations_for(problem) == 1


@pytest.mark.parametrize("population", [0, 1, 7])
def test_a_population_is_a_number_of_pairs(population: int) -> None:
    with pytest.raises(ValueError, match="pairs"):
        Budget(population=population)
