"""Lyra's knapsack against an integer program and a plain Python version, and a whole scheduler tick at full scale.

    python -m benchmarks.knapsack [--json OUT] [--repeat 5] [--seed 0]

First the knapsack alone, at the size that was published (354 items, 245 GPUs) and far beyond: dynamic programming,
compiled; the same question as an integer program (HiGHS); the same dynamic programming in plain Python; and the greedy fallback,
whose value is shown as a share of the optimum. All in one run, on one core.

Then one division of 443 owned servers and 520 of the inference cluster, of which 170 are on loan, among 2,000 active jobs
and 100 pending ones: with nothing new, with a few arrivals, and from nothing, against the time of solving its knapsacks as
integer programs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
from scipy.sparse import coo_array, vstack  # type: ignore[import-untyped]

from scheduling.core.base_and_flexible import Demands, demands_of
from scheduling.core.fleet import NO_ROLE, Fleet, Speeds, WorkerMap, no_workers
from scheduling.core.flexible_demands import Growth
from scheduling.core.knapsack import Choice, ItemGroups, choose_items
from scheduling.core.two_phase import Division, TwoPhase, divide

SIZES = ((354, 245), (1_000, 1_000), (5_000, 4_000))
"""Items and GPUs."""

OWNED_SERVERS, INFERENCE_SERVERS, SERVERS_ON_LOAN, GPUS_PER_SERVER = 443, 520, 170, 8
ACTIVE_JOBS, PENDING_JOBS = 2_000, 100
EXPANSION = 3


def seconds_of(function: Callable[[], Any], repeat: int) -> float:
    """Median time of a call, after one that loads what is compiled."""
    function()
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return median(times)


def random_groups(rng: np.random.Generator, items: int) -> ItemGroups:
    """Elastic jobs whose range is twice their base demand, of 1 to 8 GPUs a worker."""
    offsets, weight, value = [0], [], []
    while offsets[-1] < items:
        base = int(rng.integers(1, 17))
        extra = np.arange(1, min(base, items - offsets[-1]) + 1)
        gpus = int(rng.choice([1, 2, 4, 8], p=[0.4, 0.3, 0.2, 0.1]))
        work = rng.lognormal(11.0, 1.5)
        weight += (gpus * extra).tolist()
        value += (work / base - work / (base + extra)).tolist()
        offsets.append(len(weight))
    return ItemGroups(np.array(offsets), np.array(weight), np.array(value), np.full(len(offsets) - 1, -1))


def program_value(groups: ItemGroups, capacity: int) -> float:
    """The optimum found by an integer program."""
    items, count = groups.weight.size, groups.present.size
    group_of = np.repeat(np.arange(count), np.diff(groups.offsets))
    one_each = coo_array((np.ones(items), (group_of, np.arange(items))), shape=(count, items))
    rows = vstack([one_each, coo_array(groups.weight[None, :].astype(float))]).tocsr()
    answer = milp(
        -groups.value / groups.value.max(),
        constraints=LinearConstraint(rows, -np.inf, np.concatenate((np.ones(count), [capacity]))),
        integrality=np.ones(items),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-9},
    )
    return float(groups.value[answer.x > 0.5].sum())


def plain_value(groups: ItemGroups, capacity: int) -> float:
    """The optimum by the textbook's loops in plain Python."""
    best = [0.0] * (capacity + 1)
    weights, values, offsets = groups.weight.tolist(), groups.value.tolist(), groups.offsets.tolist()
    for first, last in zip(offsets, offsets[1:], strict=False):
        following = best[:]
        for weight, value in zip(weights[first:last], values[first:last], strict=True):
            for left in range(weight, capacity + 1):
                if best[left - weight] + value > following[left]:
                    following[left] = best[left - weight] + value
        best = following
    return best[capacity]


def measure_knapsack(items: int, capacity: int, repeat: int, seed: int) -> dict[str, Any]:
    """One size: times and how the values compare."""
    groups = random_groups(np.random.default_rng(seed), items)
    choice: Choice = choose_items(groups, capacity)
    greedy = choose_items(groups, capacity, work_limit=0)
    optimum = program_value(groups, capacity)
    started = time.perf_counter()
    plain = plain_value(groups, capacity)
    plain_seconds = time.perf_counter() - started
    return {
        "items": items,
        "gpus": capacity,
        "compiled_seconds": seconds_of(lambda: choose_items(groups, capacity), repeat),
        "greedy_seconds": seconds_of(lambda: choose_items(groups, capacity, work_limit=0), repeat),
        "program_seconds": seconds_of(lambda: program_value(groups, capacity), max(1, repeat // 3)),
        "plain_seconds": plain_seconds,
        "value_over_program": choice.value / optimum,
        "value_over_plain": choice.value / plain,
        "greedy_over_optimum": greedy.value / choice.value,
    }


def random_demands(rng: np.random.Generator, jobs: int, elastic_share: float) -> Demands:
    """Jobs like those of the published trace: mostly small, a fifth may run on loan, few are elastic."""
    gpus, owned, lent = [], [], []
    remaining = rng.lognormal(9.0, 1.5, jobs)
    for _ in range(jobs):
        total = int(rng.choice([1, 2, 4, 8, 16], p=[0.65, 0.15, 0.1, 0.08, 0.02]))
        size = min(8, total)
        workers = total // size
        most = workers
        if rng.random() < elastic_share:
            size, workers, most = int(rng.choice([1, 2])), 4, 16
        gpus.append(size)
        numbers = np.arange(workers, most + 1)
        owned.append((numbers, numbers.astype(float)))
        fungible = rng.random() < 0.21
        on_loan = (
            np.arange(EXPANSION * workers, EXPANSION * most + 1) if most > workers else EXPANSION * numbers
        )
        lent.append((on_loan, on_loan / EXPANSION) if fungible else (on_loan[:0], on_loan[:0].astype(float)))
    return demands_of(gpus, remaining, _speeds(owned), _speeds(lent))


def _speeds(listed: list[tuple[np.ndarray, np.ndarray]]) -> Speeds:
    """Rates of all jobs on one kind."""
    offsets = np.concatenate(([0], np.cumsum([numbers.size for numbers, _ in listed])))
    workers = np.concatenate([numbers for numbers, _ in listed])
    return Speeds(offsets, workers, np.concatenate([rates for _, rates in listed]))


def without(workers: WorkerMap, jobs: np.ndarray) -> WorkerMap:
    """The map after some jobs lost all their workers."""
    counts = np.diff(workers.offsets)
    stays = np.repeat(~np.isin(np.arange(counts.size), jobs), counts)
    counts = np.where(np.isin(np.arange(counts.size), jobs), 0, counts)
    return WorkerMap(
        np.concatenate(([0], np.cumsum(counts))),
        workers.server[stays],
        workers.base[stays],
        workers.flexible[stays],
    )


def measure_tick(elastic_share: float, growth: Growth, repeat: int, seed: int) -> dict[str, Any]:
    """One scheduler tick at full scale, in three situations."""
    rng = np.random.default_rng(seed)
    servers = OWNED_SERVERS + INFERENCE_SERVERS
    on_loan = np.arange(servers) >= OWNED_SERVERS
    gpus = np.where(np.arange(servers) < OWNED_SERVERS + SERVERS_ON_LOAN, GPUS_PER_SERVER, 0)
    fleet = Fleet(gpus, on_loan, np.full(servers, NO_ROLE))
    jobs = ACTIVE_JOBS + PENDING_JOBS
    demands = random_demands(rng, jobs, elastic_share)
    options = TwoPhase(growth=growth)
    nothing = no_workers(jobs)
    full: Division = divide(fleet, nothing, demands, options)
    ended = rng.choice(np.flatnonzero(np.diff(full.workers.offsets)), 5, replace=False)
    some = without(full.workers, ended)
    short = replace(options, work_limit=0)
    choices = full.knapsacks
    return {
        "growth": growth.value,
        "elastic_share": elastic_share,
        "running": int(np.count_nonzero(np.diff(full.workers.offsets))),
        "skipped": int(full.skipped.size),
        "knapsack_items": [choice.items for choice in choices],
        "knapsack_gpus": [choice.capacity for choice in choices],
        "repeated_seconds": seconds_of(lambda: divide(fleet, full.workers, demands, options), repeat),
        "five_changed_seconds": seconds_of(lambda: divide(fleet, some, demands, options), repeat),
        "greedy_five_changed_seconds": seconds_of(lambda: divide(fleet, some, demands, short), repeat),
        "from_nothing_seconds": seconds_of(lambda: divide(fleet, nothing, demands, options), repeat),
    }


def main(arguments: list[str] | None = None) -> int:
    """Print both tables; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    parser.add_argument("--repeat", type=int, default=5, help="runs of which the median is taken")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {"knapsack": [], "tick": []}
    print(
        "items   GPUs   compiled   program / compiled   plain / compiled   greedy / compiled   greedy value"
    )
    for items, capacity in SIZES:
        row = measure_knapsack(items, capacity, options.repeat, options.seed)
        results["knapsack"].append(row)
        compiled = row["compiled_seconds"]
        print(
            f"{items:5d} {capacity:6d} {compiled * 1e3:7.2f} ms {row['program_seconds'] / compiled:20.0f}"
            f" {row['plain_seconds'] / compiled:18.0f} {row['greedy_seconds'] / compiled:19.2f}"
            f" {row['greedy_over_optimum']:14.4f}",
            flush=True,
        )
    print("\ngrowth       elastic  running  items      again   five ended   greedy instead   from nothing")
    for elastic_share in (0.05, 0.5):
        for growth in (Growth.KNAPSACK, Growth.GREATEST_GAIN):
            row = measure_tick(elastic_share, growth, options.repeat, options.seed)
            results["tick"].append(row)
            print(
                f"{row['growth']:13s} {elastic_share:5.0%} {row['running']:8d} {sum(row['knapsack_items']):6d}"
                f" {row['repeated_seconds'] * 1e3:7.2f} ms {row['five_changed_seconds'] * 1e3:9.2f} ms"
                f" {row['greedy_five_changed_seconds'] * 1e3:13.2f} ms {row['from_nothing_seconds'] * 1e3:11.2f} ms",
                flush=True,
            )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
