"""Promises on slow links with plans of gradients and without, simulated with curves measured under each.

    python -m benchmarks.long.promises_with_plans --measure CURVES [--settings VGG16 recommender ResNet50]
                                             [--rounds 1] [--seconds 3] [--slower 4]
    python -m benchmarks.long.promises_with_plans --curves CURVES [--servers 16] [--jobs 200] [--seeds 5]
                                             [--json OUT]

`--measure` trains each setting of `benchmarks.long.gradients_live` with real workers on emulated links, two
and four servers with one GPU each, without a plan and under the plans of all planners. As on the platform, a
job uses one family: the fastest on four servers. On the links, training without a plan scales as published on
four servers. One worker sends nothing: its level is the emulated device's own time.

The other line simulates the same jobs twice, with the curve of training without a plan and with that of its
family. In these settings batches grow with the workers, so work is counted in samples: an iteration of the
curves is a batch of one GPU. Jobs arrive at random; each has the work of a few hours on one, two or four GPUs
without a plan, and asks for a promise of half to one and a half times that (ElasticFlow 6.1).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gradients.measuring import local_agent, measure, plans
from benchmarks.gradients.scene import SETTINGS, Scene
from benchmarks.scheduling.admission_optimum import deadlines_met
from communication.profiles.placement import PlacementShape
from scheduling.core.question.snapshot import ServiceClass
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.run import Simulation
from simulation.workloads.workload import MeasuredThroughput, ModelProfile, Workload

KIND = "emulated"
#: Servers of the measured levels; the links scale as published on the last one.
LEVELS = (2, 4)
#: Seconds of a job without a plan on its drawn GPUs.
LEAST_SECONDS, MOST_SECONDS = 1800.0, 6 * 3600.0
#: Any batch size that all numbers of workers divide.
BATCH = 64
#: Load as a share of the cluster's GPU time, by the drawn GPUs; jobs that run on fewer need less.
LOAD = 2.5
WITHOUT, WITH = "without plans", "with plans"


def measure_curves(name: str, rounds: int, seconds: float, slower: float) -> dict[str, Any]:
    """Return seconds of an iteration by family and workers, and the overruns; void ones are separate."""
    like = PlacementShape(LEVELS[-1], 1)
    curves: dict[str, dict[int, Any]] = {}
    for servers in LEVELS:
        scene = Scene(SETTINGS[name], PlacementShape(servers, 1), slower, scales_on=like)
        with local_agent() as agent:
            made = plans(scene, measure(agent, scene, None, seconds).profile)
            for family, plan in made.items():
                taken = [
                    measure(agent, scene, None if family == "dense" else plan, seconds) for _ in range(rounds)
                ]
                valid = [each.iteration_seconds for each in taken if not each.void]
                point = {
                    "iteration_seconds": median(valid) if valid else None,
                    "overruns": [each.overrun for each in taken],
                    "predicted_seconds": plan.predicted_seconds,
                }
                curves.setdefault(family, {})[servers] = point
                print(
                    json.dumps({"setting": name, "family": family, "servers": servers, **point}), flush=True
                )
    return {"alone_seconds": slower * SETTINGS[name].model.compute_seconds, "families": curves}


def throughput(measured: dict[str, Any], family: str) -> MeasuredThroughput:
    """Return batches of one GPU per second, by GPUs, without void measurements."""
    rates = {1: 1.0 / measured["alone_seconds"]}
    for workers, point in measured["families"][family].items():
        if point["iteration_seconds"] is not None:
            rates[int(workers)] = int(workers) / point["iteration_seconds"]
    return MeasuredThroughput(np.array(list(rates)), np.array(list(rates.values())))


def chosen_family(measured: dict[str, Any]) -> str:
    """Return the fastest family on the most servers; training without a plan if no valid one is faster."""
    rates = {
        family: float(throughput(measured, family).iterations_per_second[-1])
        for family in measured["families"]
    }
    return max(rates, key=lambda family: (rates[family], family == "dense"))


def profiles(curves: dict[str, Any], *, planned: bool) -> tuple[ModelProfile, ...]:
    """Return one profile of each setting."""
    return tuple(
        ModelProfile(name, BATCH, {KIND: throughput(each, chosen_family(each) if planned else "dense")})
        for name, each in curves.items()
    )


def draw(curves: dict[str, Any], jobs: int, gpus: int, seed: int) -> Workload:
    """Draw jobs by seed. Their requests do not depend on plans."""
    random = np.random.default_rng(seed)
    without = profiles(curves, planned=False)
    of = random.integers(len(without), size=jobs)
    asked = random.choice([1, 2, 4], size=jobs)
    seconds = np.exp(random.uniform(np.log(LEAST_SECONDS), np.log(MOST_SECONDS), size=jobs))
    rates = np.array([_rate(without[row].by_kind[KIND], count) for row, count in zip(of, asked, strict=True)])
    gap = float((seconds * asked).mean()) / (LOAD * gpus)
    submitted = np.concatenate(([0.0], np.cumsum(random.exponential(gap, size=jobs - 1))))
    return Workload(
        name="slow links",
        source=f"drawn by seed {seed}; curves measured on emulated links",
        job_id=tuple(f"job{row:04d}" for row in range(jobs)),
        service_class=(ServiceClass.SLO,) * jobs,
        submitted_at=submitted,
        deadline_at=submitted + random.uniform(0.5, 1.5, size=jobs) * seconds,
        iterations=np.ceil(seconds * rates),
        profile_of=of.astype(np.int64),
        requested_gpus=asked.astype(np.int64),
        requested_seconds=seconds,
        profiles=without,
    )


def _rate(curve: MeasuredThroughput, gpus: int) -> float:
    """Return the rate of the most measured workers, up to ``gpus``."""
    return float(curve.iterations_per_second[curve.gpus <= gpus][-1])


def simulate(workload: Workload, curves: dict[str, Any], servers: int, *, planned: bool) -> dict[str, int]:
    """Return the numbers of promises made, kept and broken."""
    asked = SimulationSettings("punctual", (PoolSize(KIND, servers, 1),), slot_seconds=60.0)
    workload = Workload(**{**vars(workload), "profiles": profiles(curves, planned=planned)})
    outcome = Simulation(workload, asked).run()
    return {
        "admitted": sum(outcome.jobs.promised),
        "met": deadlines_met(outcome),
        "promised_late": len(outcome.broken),
    }


def main() -> int:
    """Print the requested table; return 1 if a promise was late."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--curves", type=Path)
    parser.add_argument(
        "--settings", nargs="+", choices=sorted(SETTINGS), default=["VGG16", "recommender", "ResNet50"]
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--slower", type=float, default=4.0)
    parser.add_argument("--servers", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.measure is not None:
        print(f"load {os.getloadavg()[0]:.1f}", flush=True)
        found = {
            name: measure_curves(name, options.rounds, options.seconds, options.slower)
            for name in options.settings
        }
        options.measure.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    if options.curves is None:
        parser.error("either --measure or --curves is needed")
    curves = json.loads(options.curves.read_text())
    print({name: chosen_family(each) for name, each in curves.items()})
    rows = []
    for seed in range(1, options.seeds + 1):
        workload = draw(curves, options.jobs, options.servers, seed)
        row: dict[str, Any] = {"seed": seed, "jobs": options.jobs}
        for name, planned in ((WITHOUT, False), (WITH, True)):
            row[name] = simulate(workload, curves, options.servers, planned=planned)
        rows.append(row)
        print(json.dumps(row), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row[name]["promised_late"] for row in rows for name in (WITHOUT, WITH)))


if __name__ == "__main__":
    sys.exit(main())
