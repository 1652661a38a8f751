"""Deadlines met by the limits of admission's search, on synthetic workloads and public traces.

    python -m benchmarks.scheduling.search_limits [--seeds 10]
        [--workload elasticflow:jobs=200,mean_interarrival_seconds=900]
        [--servers 4] [--gpus-per-server 8] [--slot-seconds 240] [--trace testbed_195job:16x8:240 ...]
        [--json OUT]

Every row is one setting of the search, every column a workload, pauses charged. The first row is the
published admission, which does not search. Early admissions can prevent later promises, so more admissions at
one instant need not be more deadlines met in the end: this benchmark is for choosing the limits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from benchmarks.scheduling.admission_optimum import Measured, deadlines_met
from scheduling.core.elasticflow.search_limits import SearchLimits
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.run import Simulation
from simulation.policies import POLICIES
from simulation.workloads.catalogue import load_workload, reference_gpu_type
from simulation.workloads.errors import TraceError
from simulation.workloads.workload import Workload

LIMITS: dict[str, SearchLimits | None] = {
    "elasticflow": None,
    "as shipped": SearchLimits(),
    **{f"{fillings} fillings": SearchLimits(most_fillings=fillings) for fillings in (1, 2, 4, 8, 24)},
    **{
        f"everybody, {fillings} fillings": SearchLimits(everybody=True, most_fillings=fillings)
        for fillings in (2, 8)
    },
}
"""Each row differs from the defaults in what it names; ``everybody`` rows make room at any cost."""


@dataclass(frozen=True)
class Case:
    """One workload on one cluster."""

    name: str
    workload: Workload
    pool: PoolSize
    slot_seconds: float


def met(case: Case, limits: SearchLimits | None) -> tuple[int, int, float]:
    """Return deadlines met, promises broken, and wall seconds."""
    with patch.dict(POLICIES, {"measured": Measured(limits)}):
        settings = SimulationSettings("measured", (case.pool,), slot_seconds=case.slot_seconds)
        outcome = Simulation(case.workload, settings).run()
    return deadlines_met(outcome), len(outcome.broken), outcome.wall_seconds


def trace_case(text: str) -> Case:
    """Parse ``NAME:SERVERSxGPUS:SLOT``. Raises ValueError for another form, TraceError for an unreadable
    trace."""
    name, cluster, slot = text.rsplit(":", 2)
    servers, gpus = cluster.split("x")
    workload = load_workload(name)
    return Case(name, workload, PoolSize(reference_gpu_type(workload), int(servers), int(gpus)), float(slot))


def run(groups: dict[str, list[Case]]) -> dict[str, Any]:
    """Print and return, for each setting, the deadlines met in each group of cases."""
    names = list(groups)
    print(f"{'':26s}" + "".join(f"{name:>24s}" for name in names) + "      late   seconds")
    results: dict[str, Any] = {}
    for title, limits in LIMITS.items():
        began = time.perf_counter()
        sums, broken = {}, 0
        for name, cases in groups.items():
            answers = [met(case, limits) for case in cases]
            sums[name] = sum(answer[0] for answer in answers)
            broken += sum(answer[1] for answer in answers)
        seconds = time.perf_counter() - began
        results[title] = {"met": sums, "promised_late": broken, "seconds": seconds}
        print(
            f"{title:26s}" + "".join(f"{sums[name]:24d}" for name in names) + f"{broken:10d}{seconds:10.1f}",
            flush=True,
        )
    return results


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workload", default="elasticflow:jobs=200,mean_interarrival_seconds=900")
    parser.add_argument("--seeds", type=int, default=10, help="synthetic workloads, one a seed")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--gpus-per-server", type=int, default=8)
    parser.add_argument("--slot-seconds", type=float, default=240.0)
    parser.add_argument("--trace", action="append", default=[], metavar="NAME:SERVERSxGPUS:SLOT_SECONDS")
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    options = parser.parse_args(arguments)
    groups: dict[str, list[Case]] = {}
    if options.seeds:
        synthetic = [load_workload(options.workload, seed=seed) for seed in range(options.seeds)]
        groups[f"{options.seeds} synthetic"] = [
            Case(
                f"seed {seed}",
                workload,
                PoolSize(reference_gpu_type(workload), options.servers, options.gpus_per_server),
                options.slot_seconds,
            )
            for seed, workload in enumerate(synthetic)
        ]
    try:
        groups |= {text: [trace_case(text)] for text in options.trace}
    except (TraceError, ValueError) as error:
        print(f"cannot use a trace: {error}", file=sys.stderr)
        return 2
    results = run(groups)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
