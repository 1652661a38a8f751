"""Deadlines met on clusters that get more work than they can do: virtual clusters of Philly, months of long
jobs.

    python -m benchmarks.overload [--set development|held_out|all] [--only TEXT]
        [--policy punctual ...] [--json OUT]

Models and deadlines are drawn by seed, the deadlines by the rule of the ITP traces: submission plus uniform
(0.5, 1.5) times the duration at the requested GPUs. Every case runs under `elasticflow` first, with pauses
charged and slots of 60 s; the other policies stand beside it: deadlines met, promises that came late, and
time in the event loop relative to `elasticflow`. Rules are chosen on the set `development` alone; `held_out`
is to be looked at when they are. One case alone is `manage.py simulate --trace TRACE --seed SEED --servers N
--gpus-per-server 8 --policy POLICY`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.admission_optimum import deadlines_met
from simulation.engine.run import Simulation
from simulation.engine.settings import PoolSize, SimulationSettings
from simulation.workloads.catalogue import load_workload, reference_gpu_type
from simulation.workloads.errors import TraceError
from simulation.workloads.workload import Workload

REFERENCE = "elasticflow"
GPUS_PER_SERVER = 8


@dataclass(frozen=True)
class OverloadCase:
    """Virtual clusters of Philly (joined by ``+``) on so many servers of eight GPUs; ``shortest_seconds``
    leaves shorter jobs out, ``seed`` draws models and deadlines.
    """

    virtual_cluster: str
    servers: int
    seed: int = 0
    shortest_seconds: float = 600.0

    @property
    def trace(self) -> str:
        """As `manage.py simulate --trace` takes it."""
        name = f"philly_all:virtual_cluster={self.virtual_cluster}"
        return (
            name if self.shortest_seconds == 600.0 else f"{name},shortest_seconds={self.shortest_seconds:g}"
        )

    @property
    def name(self) -> str:
        """Short and unique."""
        longer = "" if self.shortest_seconds == 600.0 else f" from {self.shortest_seconds:g} s"
        return f"{self.virtual_cluster}{longer}, {self.servers}x{GPUS_PER_SERVER}, seed {self.seed}"

    def workload(self) -> Workload:
        """The jobs. Raises TraceError where the trace is not on this machine."""
        return load_workload(self.trace, seed=self.seed)


SETS: dict[str, tuple[OverloadCase, ...]] = {
    "development": (
        *(OverloadCase("0e4a51", servers, seed) for seed in (0, 1, 2) for servers in (8, 16, 32)),
        OverloadCase("2869ce", 8),
        OverloadCase("103959", 8),
        OverloadCase("11cb48", 8),
        OverloadCase("0e4a51+103959", 8),
        OverloadCase("11cb48", 8, 0, 3600.0),
        OverloadCase("b436b2", 8),
        OverloadCase("b436b2", 16),
    ),
    "held_out": (
        *(OverloadCase("0e4a51", servers, seed) for seed in (11, 12, 13) for servers in (8, 16, 32)),
        OverloadCase("2869ce", 8, 11),
        OverloadCase("103959", 8, 11),
        OverloadCase("e13805", 8, 11),
        OverloadCase("ed69ec", 8, 11),
        OverloadCase("11cb48", 16, 11),
        OverloadCase("2869ce+e13805+ed69ec", 8, 11),
        OverloadCase("0e4a51+2869ce", 16, 11, 3600.0),
        OverloadCase("6214e9", 8, 11, 14400.0),
        OverloadCase("b436b2", 8, 11),
        OverloadCase("b436b2", 16, 11),
        OverloadCase("b436b2", 32, 11),
        OverloadCase("6214e9", 8, 11),
        OverloadCase("6214e9", 16, 11),
    ),
}


def measured(workload: Workload, servers: int, policy: str) -> dict[str, Any]:
    """What one policy makes of one workload: counts of jobs, and seconds in the event loop."""
    pool = PoolSize(reference_gpu_type(workload), servers, GPUS_PER_SERVER)
    outcome = Simulation(workload, SimulationSettings(policy, (pool,), slot_seconds=60.0)).run()
    return {
        "deadlines_met": deadlines_met(outcome),
        "promised": sum(outcome.jobs.promised),
        "promised_late": len(outcome.broken),
        "wall_seconds": outcome.wall_seconds,
    }


def run(case: OverloadCase, policies: list[str]) -> dict[str, Any]:
    """All policies on one case, the reference first, printed as they come."""
    workload = case.workload()
    print(f"{case.name}: {workload.jobs} jobs", flush=True)
    figures: dict[str, Any] = {}
    for policy in (REFERENCE, *policies):
        row = figures[policy] = measured(workload, case.servers, policy)
        of_met = row["deadlines_met"] / max(1, figures[REFERENCE]["deadlines_met"])
        of_time = row["wall_seconds"] / figures[REFERENCE]["wall_seconds"]
        print(
            f"    {policy:16s} on time {row['deadlines_met']:6d} ({of_met:6.4f})  promised late "
            f"{row['promised_late']:3d}  {row['wall_seconds']:7.1f} s ({of_time:5.2f})",
            flush=True,
        )
    return {"trace": case.trace, "servers": case.servers, "seed": case.seed, "jobs": workload.jobs} | {
        "policies": figures
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--set", choices=[*SETS, "all"], default="development")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument(
        "--policy", action="append", metavar="NAME", help=f"beside {REFERENCE}; usual: punctual"
    )
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    options = parser.parse_args(arguments)
    chosen = [case for name, cases in SETS.items() if options.set in (name, "all") for case in cases]
    results: dict[str, Any] = {}
    try:
        for case in chosen:
            if options.only in case.name:
                results[case.name] = run(case, options.policy or ["punctual"])
    except TraceError as error:
        print(f"skipped: {error}", file=sys.stderr)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
