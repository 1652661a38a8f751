"""Elastic jobs, GPU kinds and preemption on the virtual clock: vectors V3, V4 and V15 to V17 of Lyra's
specification."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from scheduling.core.lyra.fleet import WorkerMap
from scheduling.core.lyra.tick import Division, TwoPhase, divide
from scheduling.core.problem.problem import Problem
from scheduling.core.together.sharing import Sharing
from scheduling.policies.shares_workers import SharesWorkers
from simulation.engine.curves.worker_tables import worker_tables
from simulation.policies import POLICIES
from tests.simulation.lending.worlds import Job, completion_seconds, ranges_of, run, usage_of


class FixedSplit(SharesWorkers):
    """Gives both jobs fixed workers while both run; the last job gets its maximum."""

    name = "fixed_split"
    rules = TwoPhase()
    split: ClassVar[tuple[int, ...]] = ()

    def divided(self, problem: Problem, sharing: Sharing) -> Division:
        division = divide(sharing.fleet, sharing.workers(problem.columns), sharing.demands, self.rules)
        counts = self.split if problem.count == 2 else (6,)
        jobs = np.arange(problem.count)
        workers = WorkerMap(
            np.arange(problem.count + 1), np.zeros_like(jobs), np.full(problem.count, 2), np.array(counts) - 2
        )
        return replace(division, workers=workers)


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> type[FixedSplit]:
    monkeypatch.setitem(POLICIES, FixedSplit.name, FixedSplit())
    return FixedSplit


@pytest.mark.parametrize(
    ("workers", "first", "second"),
    [
        ((6, 2), 50.0, 160 / 3),
        ((2, 6), 190 / 3, 20.0),
        ((4, 4), 60.0, 30.0),
        ((5, 3), 170 / 3, 40.0),
        ((3, 5), 62.0, 24.0),
    ],
)
def test_v3_two_elastic_jobs_end_as_their_static_split_says(
    split: type[FixedSplit], workers: tuple[int, int], first: float, second: float
) -> None:
    split.split = workers
    outcome = run([Job(50.0, 2, 6), Job(20.0, 2, 6)], policy="fixed_split")
    assert completion_seconds(outcome) == pytest.approx([first, second], abs=1e-6)


def test_v3_the_knapsack_favours_the_job_with_more_work() -> None:
    outcome = run([Job(50.0, 2, 6), Job(20.0, 2, 6)], slot_seconds=1000.0)
    allocated = outcome.allocations
    assert {int(job): int(gpus) for job, gpus in zip(allocated.job[:2], allocated.gpus[:2], strict=True)} == {
        0: 5,
        1: 3,
    }


def test_v4_the_knapsack_takes_the_better_of_two_splits() -> None:
    outcome = run([Job(100.0, 2, 3), Job(20.0, 2, 6)])
    assert completion_seconds(outcome) == pytest.approx([100.0, 24.0], abs=1e-6)


@pytest.mark.parametrize(("keeps_progress", "ends_after"), [(False, 1963.0), (True, 1363.0)])
def test_v15_a_preempted_job_waits_and_pays_for_its_restart(keeps_progress: bool, ends_after: float) -> None:
    """Three servers are lent from 300 s, reclaimed at 900 s and lent again at 1,200 s."""
    jobs = [
        Job(5000.0, 1, 1, gpus_per_worker=8),
        Job(
            1000.0, 1, 1, gpus_per_worker=8, submitted_at=300.0, fungible=True, keeps_progress=keeps_progress
        ),
    ]
    outcome = run(jobs, inference_servers=4, usage=usage_of(0, 0, 1, *[0] * 20))
    assert completion_seconds(outcome)[1] == pytest.approx(ends_after, abs=1e-6)
    assert outcome.jobs.preemptions.tolist() == [0, 1]
    assert outcome.jobs.waiting_seconds[1] == pytest.approx(300.0, abs=1e-6)


@pytest.mark.parametrize(("gain", "ends_at"), [(1.0, 75.0), (0.8, 250 / 3)])
def test_v16_a_resized_job_progresses_by_its_workers(
    split: type[FixedSplit], monkeypatch: pytest.MonkeyPatch, gain: float, ends_at: float
) -> None:
    """Two workers for 30 s, six for 30 s, then four. With imperfect scaling each added worker counts 0.8."""

    def divided(self: FixedSplit, problem: Problem, sharing: Sharing) -> Division:
        division = divide(sharing.fleet, sharing.workers(problem.columns), sharing.demands, self.rules)
        count = 2 if problem.now < 30 else 6 if problem.now < 60 else 4
        flexible = np.array([count - 2, 0])[: problem.count]
        offsets = np.arange(problem.count + 1)
        base = np.array([2, 1])[: problem.count]
        return replace(division, workers=WorkerMap(offsets, np.arange(problem.count), base, flexible))

    monkeypatch.setattr(FixedSplit, "divided", divided)
    # The completions of the other jobs at 30 and 60 s trigger the scheduler.
    jobs = [Job(50.0, 2, 6), Job(30.0, 1, 1), Job(30.0, 1, 1, submitted_at=30.0)]
    outcome = run(jobs, policy="fixed_split", servers=3, gain=gain)
    assert completion_seconds(outcome)[0] == pytest.approx(ends_at, abs=1e-6)


@pytest.mark.parametrize(("expansion", "servers", "seconds"), [(3, 3, 3000.0), (2, 2, 4500.0)])
def test_v17_a_job_on_inference_gpus_needs_more_of_them(expansion: int, servers: int, seconds: float) -> None:
    jobs = [
        Job(20_000.0, 1, 1, gpus_per_worker=8),
        Job(3000.0, 1, 1, gpus_per_worker=8, submitted_at=300.0, fungible=True),
    ]
    outcome = run(jobs, inference_servers=5, usage=usage_of(*[0] * 80), expansion=expansion)
    assert completion_seconds(outcome)[1] == pytest.approx(seconds, abs=1e-6)
    assert outcome.loans is not None
    assert outcome.loans.lent_gpus_busy.max() == 8 * servers


def test_v17_a_job_on_both_kinds_of_gpus_pays_for_mixing() -> None:
    """One training and nine inference GPUs, three to a worker: work of 1,000 s takes 1,000 s / 0.7."""
    tables = worker_tables(ranges_of([Job(1000.0, 4, 4, mixes=True)]), np.array([1000.0]))
    ideal = 1 + 9 / 3
    assert tables.rate(0, 1, 9) == pytest.approx(0.7 * ideal)
    assert float(tables.work[0]) / tables.rate(0, 1, 9) == pytest.approx(1428.5714, abs=1e-3)


def test_v20_estimates_change_the_order_and_not_the_progress() -> None:
    believed = [Job(100.0, 8, 8, estimate_factor=1.25), Job(110.0, 8, 8, estimate_factor=0.9)]
    assert completion_seconds(run(believed)) == pytest.approx([210.0, 110.0], abs=1e-6)
    true = [replace(job, estimate_factor=1.0) for job in believed]
    assert completion_seconds(run(true)) == pytest.approx([100.0, 210.0], abs=1e-6)


def test_a_job_that_loses_several_servers_at_once_changes_once() -> None:
    """Six base workers are on one server, 18 flexible workers on three others that return at 1,200 s."""
    jobs = [Job(5000.0, 8, 8), Job(4000.0, 2, 8, fungible=True)]
    outcome = run(jobs, inference_servers=5, usage=usage_of(0.0, 0.0, 0.0, *[0.5] * 40))
    assert outcome.loans is not None
    (reclaim,) = outcome.loans.reclaims
    assert (reclaim.at, reclaim.returned, reclaim.preempted) == (1200.0, 3, 0)
    allocations = outcome.allocations
    at_reclaim = [
        int(gpus)
        for at, job, gpus in zip(allocations.time, allocations.job, allocations.gpus, strict=True)
        if at == 1200.0 and job == 1
    ]
    # The job shrinks to its base workers, then grows by two workers in the free GPUs of their server.
    assert at_reclaim == [6, 8]
    assert outcome.jobs.rescales.tolist() == [0, 2]
