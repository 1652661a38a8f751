"""Lyra's knapsack against an integer program and a plain Python version, and a whole scheduler tick at full
scale.

    python -m benchmarks.lending.knapsack [--json OUT] [--repeat 5] [--seed 0]

First the knapsack alone, at the published size (354 items, 245 GPUs) and far beyond: dynamic programming,
compiled; the same question as an integer program (HiGHS); the same dynamic programming in plain Python; and
the greedy fallback, whose value is shown as a share of the optimum. All in one run, on one core.

Then one division of 443 owned servers and 520 of the inference cluster, of which 170 are on loan, among 2,100
jobs of which most run: with nothing new, after five jobs ended, and from nothing; against a quarter of all
that in the same run. In the last rows all jobs are elastic and may mix both kinds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
from scipy.sparse import coo_array, vstack  # type: ignore[import-untyped]

from scheduling.core.lyra.base_and_flexible import Demands, demands_of
from scheduling.core.lyra.base_demands import BaseOrder
from scheduling.core.lyra.fleet import NO_ROLE, Fleet, Speeds, WorkerMap, no_workers
from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.knapsack import Choice, ItemGroups, choose_items
from scheduling.core.lyra.tick import Division, TwoPhase, divide

SIZES = ((354, 245), (1_000, 1_000), (5_000, 4_000))
"""Items and GPUs."""

GREEDY_DRAWS = 20
"""Instances over which the greedy fallback is compared with the optimum."""

OWNED_SERVERS, INFERENCE_SERVERS, SERVERS_ON_LOAN, GPUS_PER_SERVER = 443, 520, 170, 8
JOBS = 2_100
EXPANSION = 3


@dataclass(frozen=True)
class Case:
    """A kind of workload and a rule for flexible demand."""

    name: str
    elastic_share: float
    growth: Growth = Growth.KNAPSACK
    mixing: bool = False


CASES = (
    Case("5 % elastic", 0.05),
    Case("5 %, AFS", 0.05, Growth.GREATEST_GAIN),
    Case("5 %, in turn", 0.05, Growth.ROUND_ROBIN),
    Case("50 % elastic", 0.5),
    Case("all elastic, mixing", 1.0, mixing=True),
)


def seconds_of(function: Callable[[], Any], repeat: int) -> float:
    """Return the median time of a call, after one that loads compiled code."""
    function()
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return median(times)


def random_groups(rng: np.random.Generator, items: int) -> ItemGroups:
    """Return elastic jobs whose range is twice their base demand, of 2 to 8 GPUs a worker; single-GPU workers
    would fill every gap."""
    offsets, weight, value = [0], [], []
    while offsets[-1] < items:
        base = int(rng.integers(1, 17))
        extra = np.arange(1, min(base, items - offsets[-1]) + 1)
        gpus = int(rng.choice([2, 3, 4, 6, 8]))
        work = rng.lognormal(11.0, 1.0)
        weight += (gpus * extra).tolist()
        value += (work / base - work / (base + extra)).tolist()
        offsets.append(len(weight))
    return ItemGroups(np.array(offsets), np.array(weight), np.array(value), np.full(len(offsets) - 1, -1))


def program_value(groups: ItemGroups, capacity: int) -> float:
    """Return the optimum found by an integer program."""
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
    """Return the optimum by the textbook's loops in plain Python."""
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
    """Return times and values at one size."""
    groups = random_groups(np.random.default_rng(seed), items)
    choice: Choice = choose_items(groups, capacity)
    shares = []
    for draw in range(GREEDY_DRAWS):
        drawn = random_groups(np.random.default_rng(seed + draw), items)
        greedy = choose_items(drawn, capacity, work_limit=0)
        shares.append(greedy.value / choose_items(drawn, capacity).value)
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
        "greedy_over_optimum": float(np.mean(shares)),
        "greedy_over_optimum_least": min(shares),
    }


def random_demands(rng: np.random.Generator, jobs: int, elastic_share: float, mixing: bool) -> Demands:
    """Return jobs like those of the published trace: mostly small, a fifth may run on loan, few are elastic;
    or all jobs may do everything."""
    gpus, owned, lent = [], [], []
    for _ in range(jobs):
        total = int(rng.choice([1, 2, 4, 8, 16], p=[0.7, 0.15, 0.1, 0.04, 0.01]))
        size = min(2 if mixing else 8, total)
        workers = total // size
        elastic, fungible = rng.random(2) < (elastic_share, 1.0 if mixing else 0.21)
        most = workers
        if elastic:
            size, workers = (size, workers) if mixing else (int(rng.choice([1, 2])), 4)
            most = 2 * workers if mixing else 4 * workers
        gpus.append(size)
        numbers = np.arange(workers, most + 1)
        owned.append((numbers, numbers.astype(float)))
        on_loan = np.arange(EXPANSION * workers, EXPANSION * most + 1) if elastic else EXPANSION * numbers
        lent.append((on_loan, on_loan / EXPANSION) if fungible else (on_loan[:0], on_loan[:0].astype(float)))
    remaining = rng.lognormal(9.0, 1.5, jobs)
    return demands_of(gpus, remaining, _speeds(owned), _speeds(lent), mixes=np.full(jobs, mixing))


def _speeds(listed: list[tuple[np.ndarray, np.ndarray]]) -> Speeds:
    """Return rates of all jobs on one kind."""
    offsets = np.concatenate(([0], np.cumsum([numbers.size for numbers, _ in listed])))
    workers = np.concatenate([numbers for numbers, _ in listed])
    return Speeds(offsets, workers, np.concatenate([rates for _, rates in listed]))


def without(workers: WorkerMap, jobs: np.ndarray) -> WorkerMap:
    """Return the map after some jobs lost all their workers."""
    counts = np.diff(workers.offsets)
    stays = np.repeat(~np.isin(np.arange(counts.size), jobs), counts)
    counts = np.where(np.isin(np.arange(counts.size), jobs), 0, counts)
    return WorkerMap(
        np.concatenate(([0], np.cumsum(counts))),
        workers.server[stays],
        workers.base[stays],
        workers.flexible[stays],
    )


def measure_tick(case: Case, scale: float, repeat: int, seed: int) -> dict[str, Any]:
    """Measure one scheduler tick, in three situations, at a share of the full scale."""
    rng = np.random.default_rng(seed)
    owned, on_loan, servers = (
        round(number * scale)
        for number in (OWNED_SERVERS, SERVERS_ON_LOAN, OWNED_SERVERS + INFERENCE_SERVERS)
    )
    gpus = np.where(np.arange(servers) < owned + on_loan, GPUS_PER_SERVER, 0)
    fleet = Fleet(gpus, np.arange(servers) >= owned, np.full(servers, NO_ROLE))
    jobs = round(JOBS * scale)
    demands = random_demands(rng, jobs, case.elastic_share, case.mixing)
    in_turn = case.growth is Growth.ROUND_ROBIN
    options = TwoPhase(
        order=BaseOrder.FIRST_COME if in_turn else BaseOrder.SHORTEST_AT_BASE,
        growth=case.growth,
        efficiency=1.0 if case.mixing else 0.7,
    )
    nothing = no_workers(jobs)
    full: Division = divide(fleet, nothing, demands, options)
    ended = rng.choice(np.flatnonzero(np.diff(full.workers.offsets)), 5, replace=False)
    some = without(full.workers, ended)
    return {
        "running": int(np.count_nonzero(np.diff(full.workers.offsets))),
        "skipped": int(full.skipped.size),
        "knapsack_items": sum(choice.items for choice in full.knapsacks),
        "knapsack_gpus": sum(choice.capacity for choice in full.knapsacks),
        "repeated_seconds": seconds_of(lambda: divide(fleet, full.workers, demands, options), repeat),
        "five_ended_seconds": seconds_of(lambda: divide(fleet, some, demands, options), repeat),
        "from_nothing_seconds": seconds_of(lambda: divide(fleet, nothing, demands, options), repeat),
    }


def main(arguments: list[str] | None = None) -> int:
    """Print both tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    parser.add_argument("--repeat", type=int, default=5, help="runs of which the median is taken")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {"knapsack": [], "tick": []}
    print(
        "items   GPUs   compiled   program / compiled   plain / compiled   greedy / compiled   greedy loses, "
        "at most"
    )
    for items, capacity in SIZES:
        row = measure_knapsack(items, capacity, options.repeat, options.seed)
        results["knapsack"].append(row)
        compiled = row["compiled_seconds"]
        print(
            f"{items:5d} {capacity:6d} {compiled * 1e3:7.2f} ms {row['program_seconds'] / compiled:20.0f} "
            f"{row['plain_seconds'] / compiled:18.0f} {row['greedy_seconds'] / compiled:19.2f} "
            f"{1 - row['greedy_over_optimum']:13.3%} {1 - row['greedy_over_optimum_least']:8.3%}",
            flush=True,
        )
    print(
        "\none tick            running   items  GPUs     again   five ended   from nothing   over a quarter "
        "of it"
    )
    for case in CASES:
        row = measure_tick(case, 1.0, options.repeat, options.seed)
        quarter = measure_tick(case, 0.25, options.repeat, options.seed)
        results["tick"].append({"case": case.name, "full": row, "quarter": quarter})
        print(
            f"{case.name:18s} {row['running']:8d} {row['knapsack_items']:7d} {row['knapsack_gpus']:5d} "
            f"{row['repeated_seconds'] * 1e3:6.2f} ms {row['five_ended_seconds'] * 1e3:9.2f} ms "
            f"{row['from_nothing_seconds'] * 1e3:11.2f} ms "
            f"{row['five_ended_seconds'] / quarter['five_ended_seconds']:22.1f}",
            flush=True,
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
