"""Distance of the greedy allocation of leftover GPUs from the optimum, where its optimality is not proved.

    python -m benchmarks.scheduling.allocation_optimum [--instances 400] [--seed 0] [--json OUT]

ElasticFlow's Algorithm 2 is optimal for concave curves, single-GPU steps and deadlines that leave the rest to
one GPU (the tests compare it with brute force there). Here levels are powers of two, curves are concave,
random or measured, and deadlines bind. Every way to divide 4 GPUs among 2 or 3 jobs over up to 5 slots is
tried; the best one needs the least GPU time in total among those that keep all deadlines and leave no usable
GPU idle in the next slot.

``choice``: GPU time of the best continuation after the greedy sizes of the next slot, over the optimum; this
is what matters, since everything later is planned again. ``plans``: GPU time of the greedy plans themselves,
forecasts included.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from itertools import product
from math import ceil, inf
from random import Random
from typing import Any

import numpy as np

from scheduling.core.elasticflow.attempts import EVERY_GRANT
from scheduling.core.elasticflow.elastic_allocation import Growing, grant_leftover
from scheduling.core.elasticflow.first_growth import GrowthRules
from scheduling.core.elasticflow.growth_experience import unknown_seconds
from scheduling.core.elasticflow.reallocation import Planner
from scheduling.core.problem.problem import build_problem
from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.snapshot import (
    JobSnapshot,
    PlannerSettings,
    ScalingCurve,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
)
from simulation.workloads.public_traces import THROUGHPUTS, traces_folder
from simulation.workloads.throughputs import LONG_TABLE, read_throughputs
from tests.core.exact import TOLERANCE_SECONDS, ExactJob, finish_of, job_of

GPUS, MOST_SLOTS = 4, 5
LEVELS = (1, 2, 4)
DEADLINES = {"tight": (1.02, 1.5), "loose": (1.5, 3.0)}

DrawCurve = Callable[[Random], ScalingCurve]
Total = dict[tuple[tuple[int, ...], tuple[int, ...]], float]


def concave_curve(rng: Random) -> ScalingCurve:
    """Return a curve on which each further GPU gains less than the one before."""
    gain, rate, rates = rng.uniform(0.5, 2.0), 0.0, {}
    for gpus in range(1, GPUS + 1):
        rate += gain
        gain *= rng.uniform(0.4, 0.98)
        rates[gpus] = rate
    return curve_from_measurements({gpus: rates[gpus] for gpus in LEVELS})


def rising_curve(rng: Random) -> ScalingCurve:
    """Return a curve on which each doubling gains a random factor, above 2 at times."""
    rate, rates = rng.uniform(0.5, 2.0), {}
    for gpus in LEVELS:
        rates[gpus] = rate
        rate *= rng.uniform(1.05, 2.2)
    return curve_from_measurements(rates)


def measured_curves() -> list[ScalingCurve]:
    """Return the public measurements on up to 4 GPUs, per GPU type, model and batch; none if they are not on
    this machine."""
    folder = traces_folder()
    if folder is None or not (folder / "elasticflow" / LONG_TABLE).is_file():
        return []
    table = read_throughputs(folder / "elasticflow")
    curves = []
    for gpu_type in table.gpu_types:
        for pair in table.measured_on(gpu_type):
            points = table.profile(pair, [gpu_type]).by_kind[gpu_type]
            rates = dict(zip(points.gpus.tolist(), points.iterations_per_second.tolist(), strict=True))
            curve = curve_from_measurements({gpus: rate for gpus, rate in rates.items() if gpus in LEVELS})
            if curve.levels.size:
                curves.append(curve)
    return curves


def random_snapshot(rng: Random, draw: DrawCurve, looseness: tuple[float, float]) -> Snapshot:
    """Return two or three newcomers on one server of 4 GPUs."""
    jobs = []
    for number in range(rng.randint(2, 3)):
        curve = draw(rng)
        seconds = rng.uniform(0.5, 3.0)
        deadline = min(float(MOST_SLOTS), seconds * rng.uniform(*looseness))
        rate = float(curve.throughput[rng.randrange(curve.levels.size)])
        jobs.append(
            JobSnapshot(
                id=f"job{number}",
                service_class=ServiceClass.SLO,
                submitted_at=0.0,
                deadline_at=deadline,
                remaining_iterations=rate * min(seconds, deadline) * 0.98,
                curve=curve,
                newcomer=True,
            )
        )
    settings = PlannerSettings(slot_seconds=1.0)
    return Snapshot(0.0, 0.0, (ServerSnapshot("server", GPUS),), tuple(jobs), settings=settings)


def greedy(snapshot: Snapshot) -> tuple[list[ExactJob], tuple[int, ...], float]:
    """Return the promised jobs, their sizes in the next slot, and the GPU time of their plans."""
    problem = build_problem(snapshot)
    admission = Planner(problem).admission
    admission.decide_newcomers()
    rows = np.array(admission.rows, dtype=np.int64)
    promised = np.ones(problem.count, dtype=np.bool_)
    start_order = np.zeros(problem.count, dtype=np.int64)
    rules = GrowthRules(problem.slots, False, 0.0, unknown_seconds(problem))
    plans, _ = grant_leftover(
        problem.jobs, admission.plans, Growing(rows, promised, problem.due, problem.by_deadline, start_order),
        admission.timeline(admission.rows), rules, EVERY_GRANT,
    )  # fmt: skip
    sizes = tuple(int(plans.gpus[row, 0]) for row in rows)
    return [job_of(problem, row) for row in rows.tolist()], sizes, float(plans.gpu_time[rows].sum())


def best_totals(jobs: Sequence[ExactJob]) -> dict[tuple[int, ...], float]:
    """Return the least total GPU time by sizes in the next slot, over all plans that keep all deadlines."""
    slots = max(ceil(job.due - 1e-9) for job in jobs)
    totals: Total = {((), (0,) * slots): 0.0}
    for job in jobs:
        plans = list(plans_in_time(job, slots))
        following: Total = {}
        for (first, used), spent in totals.items():
            for sizes, gpu_time in plans:
                together = tuple(before + size for before, size in zip(used, sizes, strict=True))
                if max(together) > GPUS:
                    continue
                key = ((*first, sizes[0]), together)
                following[key] = min(following.get(key, inf), spent + gpu_time)
        totals = following
    by_first: dict[tuple[int, ...], float] = {}
    for (first, _), spent in totals.items():
        by_first[first] = min(by_first.get(first, inf), spent)
    return by_first


def plans_in_time(job: ExactJob, slots: int) -> list[tuple[tuple[int, ...], float]]:
    """Return all plans of one job that keep its deadline and end with it, each with its GPU time to the exact
    finish."""
    found = []
    for sizes in product((0, *job.levels), repeat=slots):
        finish = finish_of(job, sizes, 1.0)
        if finish > job.due + TOLERANCE_SECONDS or any(sizes[ceil(finish - 1e-9) :]):
            continue
        spent = sum(size * max(0.0, min(1.0, finish - number)) for number, size in enumerate(sizes))
        found.append((sizes, spent))
    return [one for one in found if not any(_dominates(other, one) for other in found)]


def _dominates(one: tuple[tuple[int, ...], float], other: tuple[tuple[int, ...], float]) -> bool:
    """Return whether the next slot is equal, GPUs are nowhere more, and GPU time is no more."""
    return (
        one[0] != other[0]
        and one[0][0] == other[0][0]
        and one[1] <= other[1]
        and all(a <= b for a, b in zip(one[0], other[0], strict=True))
    )


def leaves_nothing(jobs: Sequence[ExactJob], first: tuple[int, ...]) -> bool:
    """Return whether no job could use GPUs that are idle in the next slot."""
    left = GPUS - sum(first)
    return not any(
        size < level <= size + left for job, size in zip(jobs, first, strict=True) for level in job.levels
    )


def compare(draw: DrawCurve, looseness: tuple[float, float], instances: int, seed: int) -> dict[str, Any]:
    """Compare the greedy allocation with the best over many instances of one class."""
    choice, plans = [], []
    idle = 0
    for number in range(instances):
        jobs, sizes, gpu_time = greedy(random_snapshot(Random(seed * 100_003 + number), draw, looseness))
        if len(jobs) < 2:
            continue
        totals = best_totals(jobs)
        best = min((spent for first, spent in totals.items() if leaves_nothing(jobs, first)), default=inf)
        if best == inf or not leaves_nothing(jobs, sizes):
            idle += 1
            continue
        choice.append(totals[sizes] / best - 1)
        plans.append(gpu_time / best - 1)
    return {
        "compared": len(choice),
        "left_idle": idle,
        "choice_equal": sum(gap < 1e-9 for gap in choice),
        "choice_gap_mean": float(np.mean(choice)),
        "choice_gap_p95": float(np.percentile(choice, 95)),
        "choice_gap_max": max(choice),
        "plans_gap_mean": float(np.mean(plans)),
        "plans_gap_max": max(plans),
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    parser.add_argument("--instances", type=int, default=400, help="instances of each class")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    measured = measured_curves()
    draws: dict[str, DrawCurve] = {"concave": concave_curve, "random": rising_curve}
    if measured:
        draws["measured"] = lambda rng: rng.choice(measured)
    else:
        print(
            f"without measured curves: {LONG_TABLE} is not at hand; the originals: "
            f"{THROUGHPUTS[LONG_TABLE]}\n"
        )
    print("                        next slot's choice           the plans     GPUs left idle")
    print("curves    deadlines  equal      mean    p95    max    mean    max    to keep promises")
    results: dict[str, Any] = {}
    for name, draw in draws.items():
        for deadlines, looseness in DEADLINES.items():
            row = compare(draw, looseness, options.instances, options.seed)
            results[f"{name}, {deadlines}"] = row
            print(
                f"{name:9s} {deadlines:9s} {row['choice_equal']:4d}/{row['compared']:<4d} "
                f"{row['choice_gap_mean']:7.2%} {row['choice_gap_p95']:6.1%} {row['choice_gap_max']:6.1%} "
                f"{row['plans_gap_mean']:7.2%} {row['plans_gap_max']:6.1%}   {row['left_idle']:d}",
                flush=True,
            )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
