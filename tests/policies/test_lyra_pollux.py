"""Pollux's genetic search, on divisions whose best sizes can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.policies.genetic_search import Budget, Choices, best_sizes
from tests.simulation.lending.worlds import Job, completion_seconds, run


def choices(
    most: list[int], capacity: int, *, now: list[int] | None = None, discount: float = 1.0
) -> Choices:
    """Jobs of one GPU a worker that scale linearly from one worker to ``most``; a fair share is one worker."""
    columns = np.arange(max(most) + 1)
    workers = np.where(columns[None, :] <= np.array(most)[:, None], columns[None, :], 0)
    return Choices(
        workers=workers,
        gpus=workers,
        speedup=workers.astype(np.float64),
        count=np.array(most),
        now=np.array(now or [0] * len(most)),
        discount=np.full(len(most), discount),
        capacity=capacity,
    )


def test_gpus_are_shared_so_that_the_harmonic_mean_is_greatest() -> None:
    assert best_sizes(choices([8, 8], 8), Budget(), seed=1).tolist() == [4, 4]
    assert sorted(best_sizes(choices([1, 8], 5), Budget(), seed=1).tolist()) == [1, 4]


def test_a_change_that_gains_less_than_its_restart_is_not_made() -> None:
    held = choices([8, 8], 8, now=[3, 5], discount=0.5)
    assert best_sizes(held, Budget(), seed=1).tolist() == [3, 5]


@settings(max_examples=30, deadline=None)
@given(
    most=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    capacity=st.integers(0, 20),
    seed=st.integers(0, 99),
)
def test_a_division_fits_and_the_same_question_has_the_same_answer(
    most: list[int], capacity: int, seed: int
) -> None:
    asked = choices(most, capacity)
    budget = Budget(population=8, generations=4)
    sizes = best_sizes(asked, budget, seed)
    assert sizes.sum() <= capacity
    assert (sizes <= np.array(most)).all()
    assert sizes.tolist() == best_sizes(asked, budget, seed).tolist()


def test_nobody_asks_for_anything() -> None:
    assert best_sizes(choices([0], 4), Budget(), seed=0).tolist() == [0]


def test_elastic_jobs_share_a_server_and_every_job_ends() -> None:
    jobs = [Job(100.0, 2, 8), Job(100.0, 2, 8), Job(50.0, 4, 4, submitted_at=40.0)]
    outcome = run(jobs, policy="lyra_pollux", slot_seconds=30.0)
    assert completion_seconds(outcome) == pytest.approx(completion_seconds(outcome))
    assert np.isfinite(outcome.jobs.completed_at).all()
    assert outcome.allocations.gpus[:2].tolist() == [4, 4]


def test_a_change_costs_half_a_minute() -> None:
    """Job 0 has the server, then half of it, then all again: two changes."""
    jobs = [Job(600.0, 2, 8), Job(100.0, 4, 4, submitted_at=60.0)]
    outcome = run(jobs, policy="lyra_pollux", slot_seconds=30.0)
    changes = int(outcome.jobs.rescales[0])
    assert changes >= 1
    assert outcome.jobs.pause_seconds[0] == pytest.approx(30.0 * changes)
