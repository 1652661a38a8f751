"""On concave curves the greedy step equals exhaustive search (the paper's optimality claim)."""

from __future__ import annotations

from itertools import product
from math import inf
from random import Random

import numpy as np
import pytest

from scheduling.core.decide import admit
from scheduling.core.elasticflow.admission import Admission
from scheduling.core.elasticflow.attempts import EVERY_GRANT
from scheduling.core.elasticflow.elastic_allocation import Growing, grant_leftover
from scheduling.core.elasticflow.first_growth import GrowthRules
from scheduling.core.elasticflow.growth_experience import unknown_seconds
from scheduling.core.elasticflow.pause_budget import PauseBudget
from scheduling.core.placement.repacking import Seating
from scheduling.core.problem.problem import build_problem
from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.snapshot import JobSnapshot, ServiceClass
from tests.core.building import job, snapshot, verdicts
from tests.core.exact import linear_jobs_feasible


def concave_curve(rng: Random, gpus: int) -> dict[int, float]:
    rate, gain, measured = 0.0, rng.uniform(0.5, 2.0), {}
    for level in range(1, gpus + 1):
        rate += gain
        measured[level] = rate
        gain *= rng.uniform(0.3, 0.98)
    return measured


def random_jobs(rng: Random, gpus: int) -> list[JobSnapshot]:
    jobs = []
    for number in range(rng.randint(1, min(3, gpus))):
        measured = concave_curve(rng, gpus)
        work = rng.uniform(1.0, 3.0) * measured[gpus]
        jobs.append(
            JobSnapshot(
                id=f"job{number}",
                service_class=ServiceClass.SLO,
                submitted_at=0.0,
                # So late that one GPU is enough for whatever the first slot leaves.
                deadline_at=work / measured[1] * 2 + 10,
                remaining_iterations=work,
                curve=curve_from_measurements(measured, powers_of_two=False),
                newcomer=True,
            )
        )
    return jobs


def greedy_sizes(jobs: list[JobSnapshot], gpus: int) -> list[int]:
    problem = build_problem(snapshot(gpus, *jobs))
    admission = Admission(problem, PauseBudget(problem, Seating(problem.present_placement)))
    assert all(verdict.promised for verdict in admission.decide_newcomers())
    promised = np.ones(len(jobs), dtype=np.bool_)
    growing = Growing(
        np.arange(len(jobs)), promised, problem.due, problem.by_deadline, np.zeros(len(jobs), dtype=np.int64)
    )
    plans, _ = grant_leftover(
        problem.jobs, admission.plans, growing, admission.timeline(admission.rows),
        GrowthRules(problem.slots, False, 0.0, unknown_seconds(problem)), EVERY_GRANT,
    )  # fmt: skip
    return plans.gpus[:, 0].tolist()


def total_gpu_time(jobs: list[JobSnapshot], sizes: tuple[int, ...] | list[int]) -> float:
    """Return the GPU time of jobs that run on ``sizes`` GPUs in the first slot and then on one GPU."""
    total = 0.0
    for item, size in zip(jobs, sizes, strict=True):
        rate, on_one = float(item.curve.throughput[size - 1]), float(item.curve.throughput[0])
        if item.remaining_iterations <= rate:
            total += size * item.remaining_iterations / rate
        else:
            total += size + (item.remaining_iterations - rate) / on_one
    return total


def best_total(jobs: list[JobSnapshot], gpus: int) -> float:
    best = inf
    for sizes in product(range(1, gpus + 1), repeat=len(jobs)):
        if sum(sizes) == gpus:
            best = min(best, total_gpu_time(jobs, sizes))
    return best


def compare(seed: int) -> None:
    rng = Random(seed)
    gpus = rng.randint(2, 6)
    jobs = random_jobs(rng, gpus)
    sizes = greedy_sizes(jobs, gpus)
    assert sum(sizes) == gpus, "no GPU idles while some job would be faster with it"
    assert total_gpu_time(jobs, sizes) == pytest.approx(best_total(jobs, gpus), rel=1e-9)


def test_greedy_equals_brute_force():
    for seed in range(150):
        compare(seed)


@pytest.mark.slow
def test_greedy_equals_brute_force_in_three_thousand_cases():
    for seed in range(1000, 4000):
        compare(seed)


def test_linear_jobs_that_violate_the_prefix_condition_are_refused():
    """Theorem 1 is necessary; whole GPUs and slots keep it from being sufficient here."""
    refused = 0
    for seed in range(200):
        rng = Random(seed)
        gpus = rng.choice([2, 4])
        rate = rng.uniform(0.5, 2.0)
        linear = {level: rate * level for level in (1, 2, 4) if level <= gpus}
        jobs = [
            job(f"job{number}", rng.uniform(0.5, 6.0) * rate, float(rng.randint(1, 4)), linear)
            for number in range(rng.randint(1, 4))
        ]
        decision = admit(snapshot(gpus, *jobs))
        if not linear_jobs_feasible([(j.remaining_iterations, rate, j.deadline_at) for j in jobs], gpus):
            refused += 1
            assert not all(verdicts(decision).values())
    assert refused > 20
