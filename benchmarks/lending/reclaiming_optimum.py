"""Unnecessary preemptions of each way of reclaiming, and its time, against the optimum.

    python -m benchmarks.lending.reclaiming_optimum [--draws 20] [--seed 0] [--json OUT]

Servers of 8 GPUs are filled with jobs by best fit, 15 % of the jobs end and others fill up; then some servers
are reclaimed. No worker is flexible, so jobs have to be preempted. Three mixes of jobs: ``published``: GPUs
as in the synthetic profile of Lyra's trace, in workers of 2 GPUs, three on loan for each training GPU;
``small`` and ``large`` workers, up to 32 and 8 a job.

Printed are preemptions relative to the optimum and, in brackets, collateral damage: GPUs of preempted jobs on
servers that stay, as a share of the GPUs asked for. The optimum is proved unless a draw is counted as
uncertain. Times are CPU time of one choice, its question's indexing included, at the median.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scheduling.core.lyra.reclaiming.choosing import Reclaim, ReclaimQuestion, choose_servers
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from simulation.workloads.synthetic_lyra import GPU_SHARES
from tests.core.lyra.reclaim_layouts import GPUS_PER_SERVER, Mix, asking_for, best_fit_question

EXPANSION = 3
SIZES = ((40, 10), (60, 30), (100, 30), (200, 60), (200, 100), (300, 100))


def every_pair(gpus_per_worker: dict[int, float], workers: dict[int, float]) -> Mix:
    """Return a mix with GPUs per worker and workers drawn independently."""
    return Mix({(g, w): a * b for g, a in gpus_per_worker.items() for w, b in workers.items()})


MIXES = {
    "published": Mix(
        {(min(2, gpus), gpus // min(2, gpus)): share for gpus, share in GPU_SHARES.items()}, EXPANSION
    ),
    "small": every_pair({1: 0.6, 2: 0.3, 4: 0.1}, {1: 0.5, 2: 0.2, 4: 0.1, 8: 0.1, 16: 0.07, 32: 0.03}),
    "large": every_pair(dict.fromkeys((1, 2, 4, 8), 0.25), dict.fromkeys((1, 2, 4, 8), 0.25)),
}

METHODS: dict[str, Callable[[ReclaimQuestion], Reclaim]] = {
    "lyra": lambda question: choose_servers(question, ReclaimMethod.LYRA),
    "as published": lambda question: choose_servers(
        replace(question, exact_last_pick=False), ReclaimMethod.LYRA
    ),
    "improved": lambda question: choose_servers(question, ReclaimMethod.IMPROVED),
    "scf": lambda question: choose_servers(question, ReclaimMethod.SCF),
    "random": lambda question: choose_servers(question, ReclaimMethod.RANDOM),
    "optimal": lambda question: choose_servers(question, ReclaimMethod.OPTIMAL),
}


@dataclass
class Tally:
    """One method on all draws of one row."""

    preempted: int = 0
    collateral_gpus: int = 0
    cut_short: int = 0
    seconds: list[float] = field(default_factory=list)

    def add(self, reclaim: Reclaim, seconds: float) -> None:
        """Count one choice."""
        self.preempted += reclaim.preempted.size
        self.collateral_gpus += reclaim.collateral_gpus
        self.cut_short += reclaim.limit_hit
        self.seconds.append(seconds)


def measure(mix: Mix, servers: int, wanted: int, draws: int, seed: int) -> dict[str, Any]:
    """Run all methods on the same layouts."""
    tallies = {name: Tally() for name in METHODS}
    jobs = 0
    for number in range(draws):
        question = replace(best_fit_question(servers, wanted, mix, seed + number), seed=seed + number)
        jobs += question.gpus_per_worker.size
        for name, choose in METHODS.items():
            began = time.process_time()
            reclaim = choose(question)
            tallies[name].add(reclaim, time.process_time() - began)
    optimum = tallies["optimal"]
    optimum_seconds = float(np.median(optimum.seconds))
    return {
        "servers": servers,
        "wanted": wanted,
        "jobs_mean": jobs / draws,
        "optimum_mean": optimum.preempted / draws,
        "optimum_uncertain": optimum.cut_short,
        "methods": {
            name: {
                "preempted_of_optimum": tally.preempted / optimum.preempted,
                "collateral_share": tally.collateral_gpus / (draws * wanted * GPUS_PER_SERVER),
                "cut_short": tally.cut_short,
                "cpu_ms_median": 1000 * float(np.median(tally.seconds)),
                "cpu_ms_max": 1000 * max(tally.seconds),
                "time_of_optimum": float(np.median(tally.seconds)) / optimum_seconds,
            }
            for name, tally in tallies.items()
        },
    }


def small_reclaims(mix: Mix, draws: int, seed: int) -> float:
    """Return preemptions of ``lyra`` relative to the optimum over all reclaims of 1 to 10 of 40 servers, each
    layout used ten times."""
    preempted = dict.fromkeys((ReclaimMethod.LYRA, ReclaimMethod.OPTIMAL), 0)
    for number in range(draws):
        question = best_fit_question(40, 1, mix, seed + number)
        for wanted in range(1, 11):
            for method in preempted:
                preempted[method] += choose_servers(asking_for(question, wanted), method).preempted.size
    return preempted[ReclaimMethod.LYRA] / preempted[ReclaimMethod.OPTIMAL]


def show(name: str, row: dict[str, Any]) -> None:
    """Print one row of both tables."""
    quality = "".join(
        f"{of['preempted_of_optimum']:8.3f} ({of['collateral_share']:4.0%})" for of in row["methods"].values()
    )
    uncertain = f" {row['optimum_uncertain']} uncertain" if row["optimum_uncertain"] else ""
    print(
        f"{name:10s}{row['servers']:4d}{row['wanted']:5d}{row['jobs_mean']:6.0f}{row['optimum_mean']:7.1f}"
        f"{quality}{uncertain}",
        flush=True,
    )


def show_times(results: dict[str, list[dict[str, Any]]]) -> None:
    """Print the median times, each also as a share of the optimum's in this run."""
    print("\nCPU time of one choice; share of the optimum's")
    print(f"{'mix':10s}{'servers':>8s}{'wanted':>7s}" + "".join(f"{name:>20s}" for name in METHODS))
    for name, rows in results.items():
        for row in rows:
            times = "".join(
                f"{of['cpu_ms_median']:11.2f} ms{of['time_of_optimum']:6.2f}"
                for of in row["methods"].values()
            )
            print(f"{name:10s}{row['servers']:8d}{row['wanted']:7d}{times}")


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    parser.add_argument("--draws", type=int, default=20, help="layouts of each row")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    # Compiles the kernels and imports the solver, outside the measurement.
    measure(MIXES["small"], 20, 8, 2, options.seed)
    print(f"{'mix':10s}{'of':>4s}{'wanted':>7s}{'jobs':>5s}{'optimum':>8s}", end="")
    print("".join(f"{name:>14s}" for name in METHODS))
    results: dict[str, list[dict[str, Any]]] = {}
    for name, mix in MIXES.items():
        for servers, wanted in SIZES:
            row = measure(mix, servers, wanted, options.draws, options.seed)
            results.setdefault(name, []).append(row)
            show(name, row)
    show_times(results)
    small = {name: small_reclaims(mix, options.draws, options.seed) for name, mix in MIXES.items()}
    print(
        "\nlyra, 1 to 10 of 40 servers: " + ", ".join(f"{name} {ratio:.3f}" for name, ratio in small.items())
    )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"sizes": results, "small_reclaims": small}, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
