"""Deadlines met by open and by prudent newcomers beside the linear relaxation, a bound for every schedule.

    python -m benchmarks.scheduling.relaxation [--set development|held_out|all] [--only TEXT]
        [--case TRACE@SERVERSxGPUS@SLOT ...] [--cells 64] [--json OUT]

The sets are those of `benchmarks.scheduling.overload`; ``--case`` adds others, such as
`elasticflow:jobs=400@2x8@240`.
Columns: `elasticflow`, `punctual` open and prudent with the newcomers that it declined to keep room, the
bound with its share of the jobs that an empty cluster could finish in time, and the seconds for the bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from benchmarks.scheduling.admission_optimum import deadlines_met
from benchmarks.scheduling.overload import GPUS_PER_SERVER, SETS
from scheduling.core.question.snapshot import Newcomers
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.checks.bound import deadlines_bound
from simulation.engine.run import Simulation
from simulation.workloads.catalogue import load_workload, reference_gpu_type
from simulation.workloads.errors import TraceError
from simulation.workloads.workload import Workload

KINDS = (("elasticflow", Newcomers.OPEN), ("punctual", Newcomers.OPEN), ("punctual", Newcomers.PRUDENT))


def run(workload: Workload, pool: PoolSize, slot_seconds: float, cells: int) -> dict[str, Any]:
    """Return the figures of one workload on one cluster."""
    figures: dict[str, Any] = {"jobs": workload.jobs}
    for policy, newcomers in KINDS:
        asked = SimulationSettings(policy, (pool,), slot_seconds=slot_seconds, newcomers=newcomers)
        simulation = Simulation(workload, asked)
        if "bound" not in figures:
            began = time.perf_counter()
            relaxation = deadlines_bound(simulation, cells=cells)
            assert relaxation is not None  # one pool, nothing borrowed
            seconds = time.perf_counter() - began
            figures |= {
                "bound": relaxation.deadlines, "possible": relaxation.possible, "bound_seconds": seconds,
            }  # fmt: skip
        outcome = simulation.run()
        figures[f"{policy}, {newcomers}"] = {
            "deadlines_met": deadlines_met(outcome),
            "room_kept": sum(code == "room_kept" for code in outcome.jobs.reason_code),
            "promised_late": len(outcome.broken),
            "wall_seconds": outcome.wall_seconds,
        }
    return figures


def line(name: str, figures: dict[str, Any]) -> str:
    """Return one row of the table, in Markdown."""
    reference, open_, prudent = (figures[f"{policy}, {newcomers}"] for policy, newcomers in KINDS)
    met = prudent["deadlines_met"]
    return (
        f"| {name} | {figures['jobs']:,} | {reference['deadlines_met']:,} | {open_['deadlines_met']:,} | "
        f"{met:,} ({prudent['room_kept']}) | {met / max(1, reference['deadlines_met']):.2f} | "
        f"{figures['bound']:,} of {figures['possible']:,} | {figures['bound_seconds']:.1f} s | "
        f"{sum(one['promised_late'] for one in (open_, prudent))} |"
    )


def _cases(options: argparse.Namespace) -> list[tuple[str, str, int, int, int, float]]:
    """Return name, trace, seed, servers, GPUs of each, and slot."""
    chosen = [
        (case.name, case.trace, case.seed, case.servers, GPUS_PER_SERVER, 60.0)
        for name, cases in SETS.items()
        if options.set in (name, "all")
        for case in cases
        if options.only in case.name
    ]
    for text in options.case:
        trace, size, slot = text.rsplit("@", 2)
        servers, gpus = size.split("x")
        chosen.append((f"{trace}, {size}", trace, 0, int(servers), int(gpus), float(slot)))
    return chosen


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--set", choices=[*SETS, "all", "none"], default="development")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--case", action="append", default=[], metavar="TRACE@SERVERSxGPUS@SLOT_SECONDS")
    parser.add_argument("--cells", type=int, default=64)
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    options = parser.parse_args(arguments)
    try:
        cases = _cases(options)
    except ValueError:
        print("--case reads TRACE@SERVERSxGPUS@SLOT_SECONDS, like elasticflow@4x8@240", file=sys.stderr)
        return 2
    print(
        "| trace, cluster | jobs | `elasticflow` | `punctual` | prudent (refused) | over `elasticflow` | "
        "bound | took | late |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    results: dict[str, Any] = {}
    try:
        for name, trace, seed, servers, gpus, slot in cases:
            workload = load_workload(trace, seed=seed)
            pool = PoolSize(reference_gpu_type(workload), servers, gpus)
            results[name] = run(workload, pool, slot, options.cells)
            print(line(name, results[name]), flush=True)
    except TraceError as error:
        print(f"skipped: {error}", file=sys.stderr)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
