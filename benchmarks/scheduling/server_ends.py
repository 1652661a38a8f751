"""A tenth of the servers ends in the middle of a trace: are promises kept, and what is the notice worth?

    python -m benchmarks.scheduling.server_ends [--trace NAME[:options] ...] [--json OUT]

The first tenth of the servers leaves for good half-way between the first and the last submission. Four runs
are compared: no server ends; the ends are known from the start (decision 0015); they become known a day
before; and the same servers are lost at that moment without notice. Slots of 60 s, measured pauses. One run
alone is `manage.py simulate --trace TRACE --servers N --gpus-per-server 8 --server-ends FILE`, with a file of
`server,ends_at_seconds`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulation.engine.asked.settings import KnownEnd, PoolSize, SimulationSettings
from simulation.engine.outside.happenings import Happening, HappeningKind
from simulation.engine.run import Simulation
from simulation.reports.summary import summary
from simulation.workloads.catalogue import load_workload, reference_gpu_type
from simulation.workloads.errors import TraceError

GPUS_PER_SERVER = 8
NOTICE_SECONDS = 86_400.0
#: Each trace with its simulated servers, and the share of best-effort jobs in per cent.
CASES = {
    "testbed_195job": 16,
    "testbed_195job:best_effort_share=0.3": 16,
    "philly_all:virtual_cluster=0e4a51": 32,
}


def compare(trace: str, servers: int) -> dict[str, Any]:
    """Run one trace in each way, and print each result."""
    workload = load_workload(trace)
    middle = float(workload.submitted_at[0] + workload.submitted_at[-1]) / 2
    tenth = range(max(1, servers // 10))
    pool = PoolSize(reference_gpu_type(workload), servers, GPUS_PER_SERVER)
    plain = SimulationSettings("punctual", (pool,), slot_seconds=60.0)
    known = replace(plain, known_ends=tuple(KnownEnd(server, middle) for server in tenth))
    soon = replace(
        plain, known_ends=tuple(KnownEnd(server, middle, middle - NOTICE_SECONDS) for server in tenth)
    )
    lost = [Happening(middle, HappeningKind.SERVER_LOST, server) for server in tenth]
    print(f"{trace}: {workload.jobs} jobs on {servers} servers, {len(tenth)} end", flush=True)
    rows = {}
    for name, settings, happenings in (
        ("nobody ends", plain, []),
        ("known from the start", known, []),
        ("known a day before", soon, []),
        ("lost without a word", plain, lost),
    ):
        facts = summary(Simulation(workload, settings, happenings).run())
        rows[name] = row = {
            key: facts[key]
            for key in (
                "jobs", "slo_jobs", "admitted", "deadlines_met", "admitted_late", "jobs_caught_by_ends",
                "mean_gpu_utilisation", "best_effort_mean_jct_seconds", "wall_seconds",
            )
        }  # fmt: skip
        utilisation = row["mean_gpu_utilisation"] or 0.0
        print(
            f"    {name:21s} promised {row['admitted']:4d}  on time {row['deadlines_met']:4d}  promised late "
            f"{row['admitted_late']:2d}  caught by an end {row['jobs_caught_by_ends']}  GPUs used "
            f"{utilisation:.3f}  {row['wall_seconds']:.1f} s",
            flush=True,
        )
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trace", action="append", choices=[*CASES], help="usual: all of them")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures to this file")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    try:
        for trace in options.trace or CASES:
            results[trace] = compare(trace, CASES[trace])
    except TraceError as error:
        print(f"skipped: {error}", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    late = [
        name
        for rows in results.values()
        for name, row in rows.items()
        if "known" in name and row["admitted_late"]
    ]
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
