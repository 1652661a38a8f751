"""Deadlines met on clusters with more work than they can do: virtual clusters of Philly, months of long jobs,
and small jobs beside four large promises.

    python -m benchmarks.scheduling.overload [--set development|held_out|crowded|all] [--only TEXT]
        [--policy punctual ...] [--slot-seconds 56 58 60 62 64] [--json OUT]

Models and deadlines are drawn by seed, the deadlines by the rule of the ITP traces: submission plus uniform
(0.5, 1.5) times the duration at the requested GPUs. Every case runs under `elasticflow` first, with pauses
charged and slots of 60 s, then under the other policies: deadlines met, late promises, and time in the event
loop relative to `elasticflow`. Rules are chosen on the set `development` alone; `held_out` is evaluated only
afterwards. One case alone is `manage.py simulate --trace TRACE --seed SEED --servers N --gpus-per-server 8
--policy POLICY`. On small clusters a slot two seconds longer changes a count by several per cent, so counts
are summed over all values of ``--slot-seconds``.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.scheduling.admission_optimum import deadlines_met
from scheduling.core.question.snapshot import ServiceClass
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.run import Simulation
from simulation.workloads.catalogue import load_workload, reference_gpu_type
from simulation.workloads.errors import TraceError
from simulation.workloads.workload import Workload

REFERENCE = "elasticflow"
GPUS_PER_SERVER = 8
DAY_SECONDS = 86400.0
MOST_GPU_SECONDS_OF_SMALL = 7200.0


@dataclass(frozen=True)
class OverloadCase:
    """Virtual clusters of Philly (joined by ``+``) on servers of eight GPUs; ``shortest_seconds`` leaves
    shorter jobs out, ``seed`` draws models and deadlines.
    """

    virtual_cluster: str
    servers: int
    seed: int = 0
    shortest_seconds: float = 600.0

    @property
    def trace(self) -> str:
        """The trace for `manage.py simulate --trace`."""
        name = f"philly_all:virtual_cluster={self.virtual_cluster}"
        return (
            name if self.shortest_seconds == 600.0 else f"{name},shortest_seconds={self.shortest_seconds:g}"
        )

    @property
    def name(self) -> str:
        """A short, unique name."""
        longer = "" if self.shortest_seconds == 600.0 else f" from {self.shortest_seconds:g} s"
        return f"{self.virtual_cluster}{longer}, {self.servers}x{GPUS_PER_SERVER}, seed {self.seed}"

    def workload(self) -> Workload:
        """Return the jobs. Raises TraceError if the trace is not on this machine."""
        return load_workload(self.trace, seed=self.seed)


@dataclass(frozen=True)
class CrowdedCase(OverloadCase):
    """A virtual cluster with its short jobs too, from one day of its trace to another.

    ``large_promises``: number of large jobs added a day later; only small jobs of the trace are then kept.
    """

    shortest_seconds: float = 0.0
    first_day: float = 0.0
    days: float = 30.0
    large_promises: int = 4

    @property
    def name(self) -> str:
        """A short, unique name."""
        beside = f" beside {self.large_promises} large" if self.large_promises else ""
        return (
            f"{self.virtual_cluster} from day {self.first_day:g} for {self.days:g}{beside}, "
            f"{self.servers}x{GPUS_PER_SERVER}, seed {self.seed}"
        )

    def workload(self) -> Workload:
        """Return the jobs. Raises TraceError if the trace is not on this machine."""
        trace = super().workload()
        day = (trace.submitted_at - trace.submitted_at[0]) / DAY_SECONDS
        chosen = (day >= self.first_day) & (day < self.first_day + self.days)
        if not self.large_promises:
            return trace.take(np.flatnonzero(chosen))
        small = chosen & (trace.requested_gpus * trace.requested_seconds <= MOST_GPU_SECONDS_OF_SMALL)
        return with_large_jobs(
            trace.take(np.flatnonzero(small)), self.large_promises, self.servers * GPUS_PER_SERVER
        )


def with_large_jobs(workload: Workload, count: int, gpus: int) -> Workload:
    """Return the workload with ``count`` large jobs, submitted a day after its first one.

    Together they need 85 % of ``gpus`` GPUs for three days, and for one more day each from then on.
    """
    model = int(np.bincount(workload.profile_of).argmax())
    measured = next(iter(workload.profiles[model].by_kind.values()))
    level = int(np.flatnonzero(measured.gpus <= gpus // count)[-1])
    rate = float(measured.iterations_per_second[level])
    windows = DAY_SECONDS * (3.0 + np.arange(count))
    at = np.full(count, workload.submitted_at[0] + DAY_SECONDS)
    both = replace(
        workload,
        job_id=(*workload.job_id, *(f"large{number}" for number in range(count))),
        service_class=(*workload.service_class, *(ServiceClass.SLO for _ in range(count))),
        submitted_at=np.append(workload.submitted_at, at),
        deadline_at=np.append(workload.deadline_at, at + windows),
        iterations=np.append(workload.iterations, np.floor(0.85 * rate * windows)),
        profile_of=np.append(workload.profile_of, np.full(count, model)),
        requested_gpus=np.append(workload.requested_gpus, np.full(count, measured.gpus[level])),
        requested_seconds=np.append(workload.requested_seconds, 0.85 * windows),
    )
    return both.take(np.lexsort((np.array(both.job_id), both.submitted_at)))


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
    "crowded": (
        CrowdedCase("11cb48", 2, first_day=15.0, days=8.0, large_promises=0),
        CrowdedCase("11cb48", 2, first_day=15.0, large_promises=0),
        CrowdedCase("11cb48", 8, first_day=15.0, days=10.0),
        CrowdedCase("11cb48", 4, first_day=15.0, days=10.0),
        CrowdedCase("ed69ec", 4, first_day=40.0, days=20.0),
        CrowdedCase("6214e9", 8, first_day=60.0, days=8.0),
    ),
}


def measured(workload: Workload, servers: int, policy: str, slots: list[float]) -> dict[str, Any]:
    """Return one policy's counts of jobs and seconds in the event loop on one workload, summed over the slot
    lengths."""
    pool = PoolSize(reference_gpu_type(workload), servers, GPUS_PER_SERVER)
    runs = [
        Simulation(workload, SimulationSettings(policy, (pool,), slot_seconds=slot)).run() for slot in slots
    ]
    return {
        "deadlines_met": sum(map(deadlines_met, runs)),
        "promised": sum(sum(outcome.jobs.promised) for outcome in runs),
        "promised_late": sum(len(outcome.broken) for outcome in runs),
        "wall_seconds": sum(outcome.wall_seconds for outcome in runs),
    }


def run(case: OverloadCase, policies: list[str], slots: list[float]) -> dict[str, Any]:
    """Run all policies on one case, the reference first, and print each result."""
    workload = case.workload()
    print(f"{case.name}: {workload.jobs} jobs", flush=True)
    figures: dict[str, Any] = {}
    for policy in (REFERENCE, *policies):
        row = figures[policy] = measured(workload, case.servers, policy, slots)
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
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--set", choices=[*SETS, "all"], default="development")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument(
        "--policy", action="append", metavar="NAME", help=f"beside {REFERENCE}; usual: punctual"
    )
    parser.add_argument("--slot-seconds", type=float, nargs="+", default=[60.0], metavar="SECONDS")
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    options = parser.parse_args(arguments)
    chosen = [case for name, cases in SETS.items() if options.set in (name, "all") for case in cases]
    results: dict[str, Any] = {}
    try:
        for case in chosen:
            if options.only in case.name:
                results[case.name] = run(case, options.policy or ["punctual"], options.slot_seconds)
    except TraceError as error:
        print(f"skipped: {error}", file=sys.stderr)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
