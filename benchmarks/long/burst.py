"""Time to decide on a burst of newcomers, pass by pass.

    python -m benchmarks.long.burst [--newcomers 3000] [--gpus 512 8] [--mix mixed small tight large]
        [--live] [--seed 0]
        [--submit bulk|service] [--json OUT]

An empty cluster gets all newcomers at one instant: with a hard, a soft and no deadline; with deadlines that
can be met easily, barely and never; small and large jobs (``mixed``), or only jobs that can nearly all be
promised (``small``), or hardly any (``tight``), or jobs that hold many GPUs for long (``large``), or, with
``--live`` alone, jobs that will never get a curve (``unmeasured``). They are decided in passes of a limited
amount of work as by the live planner; the plans of one pass are the stored plans of the next. Printed are
passes, the longest, their total, and the first 300 newcomers in passes over the same in one decision: the
cost of the limit. Times are CPU seconds of the one thread. With ``--live`` the same runs through the services
(`benchmarks.long.burst_live`); its passes are wall time, from reading the rows to the commit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.long.burst_newcomers import MIXES, newcomers
from benchmarks.scheduling.core_scaling import GPUS_PER_SERVER
from launch.compile_core import compile_core
from scheduling.core.question.decision import Decision, Verdict
from scheduling.core.question.snapshot import (
    JobSnapshot,
    PlannerSettings,
    ServerSnapshot,
    Snapshot,
)
from simulation.policies import policy_named

COMPARED = 300
MOST_WORK = 40_000_000
"""As in `scheduling.services.planning.planning`, whose import needs Django's settings."""
READ_AT_ONCE = 300


def empty_cluster(gpus: int) -> Snapshot:
    """Return a cluster in the middle of a slot."""
    servers = tuple(
        ServerSnapshot(f"server-{number}", GPUS_PER_SERVER) for number in range(gpus // GPUS_PER_SERVER)
    )
    settings = PlannerSettings(slot_seconds=5.0)
    return Snapshot(now=0.0, next_slot_at=2.0, servers=servers, jobs=(), settings=settings)


def committed(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """Return the cluster with the verdicts of a pass, and the policy's memory for the next one."""
    verdicts = {verdict.job_id: verdict for verdict in decision.verdicts}
    jobs = []
    for job in snapshot.jobs:
        verdict = verdicts.get(job.id)
        if verdict is None and job.newcomer or verdict is not None and not verdict.admitted:
            continue
        promised = job.promised if verdict is None else verdict.promised
        plan = decision.plans.get(job.id, job.stored_plan)
        jobs.append(replace(job, newcomer=False, promised=promised, stored_plan=plan))
    return replace(snapshot, jobs=tuple(jobs), memory=decision.memory)


def decided_in_passes(
    snapshot: Snapshot, waiting: list[JobSnapshot], most_work: int | None
) -> tuple[list[float], list[Verdict]]:
    """Return CPU seconds of every pass, and all verdicts."""
    policy = policy_named("punctual")
    snapshot = replace(snapshot, settings=replace(snapshot.settings, most_work=most_work))
    seconds: list[float] = []
    verdicts: list[Verdict] = []
    while waiting:
        began = time.process_time()
        group = waiting if most_work is None else waiting[:READ_AT_ONCE]
        asked = replace(snapshot, jobs=(*snapshot.jobs, *group))
        decision = policy.admit(asked)
        snapshot = committed(asked, decision)
        seconds.append(time.process_time() - began)
        verdicts += decision.verdicts
        waiting = waiting[len(decision.verdicts) :]
    return seconds, verdicts


def measured(count: int, gpus: int, mix: str, seed: int) -> dict[str, Any]:
    """Return the figures of one burst in the core alone."""
    burst = [job for job, _ in newcomers(count, gpus, mix, seed)]
    snapshot = empty_cluster(gpus)
    one, same = decided_in_passes(snapshot, burst[:COMPARED], None)
    few, verdicts = decided_in_passes(snapshot, burst[:COMPARED], MOST_WORK // 10)
    assert [v.promised for v in same] == [v.promised for v in verdicts], "a limit of work changed a verdict"
    seconds, verdicts = decided_in_passes(snapshot, burst, MOST_WORK)
    return figures(gpus, mix, seconds, verdicts) | {"ten_times_the_passes_over_one": sum(few) / sum(one)}


def figures(gpus: int, mix: str, seconds: list[float], verdicts: list[Verdict]) -> dict[str, Any]:
    """Return the printed figures of a burst."""
    return {
        "gpus": gpus,
        "mix": mix,
        "newcomers": len(verdicts),
        "promised": sum(verdict.promised for verdict in verdicts),
        "declined": sum(not verdict.admitted for verdict in verdicts),
        "passes": len(seconds),
        "longest_pass_seconds": max(seconds),
        "all_seconds": sum(seconds),
    }


def main() -> int:
    """Print a row for each cluster and mix; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--newcomers", type=int, default=3000)
    parser.add_argument("--gpus", type=int, nargs="*", default=[512, 8])
    parser.add_argument("--mix", choices=[*MIXES, "unmeasured"], nargs="*", default=["mixed"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--live", action="store_true", help="through the services, on a database of its own")
    parser.add_argument(
        "--submit", choices=["bulk", "service"], default="bulk",
        help="live: store the newcomers at once, or submit each as the API does",
    )  # fmt: skip
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    options = parser.parse_args()
    if "unmeasured" in options.mix and not options.live:
        parser.error("--mix unmeasured is settled by the services: add --live")
    compile_core()  # as the planner's worker does before its first pass
    asked = [(options.newcomers, gpus, mix, options.seed) for gpus in options.gpus for mix in options.mix]
    rows = []
    if options.live:
        from benchmarks.long.burst_live import measured_live, servers_of_its_own

        with servers_of_its_own():
            for question in asked:
                rows.append(measured_live(*question, by_service=options.submit == "service"))
                show(rows[-1])
    else:
        for question in asked:
            rows.append(measured(*question))
            show(rows[-1])
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))
    return 0


def show(row: dict[str, Any]) -> None:
    """Print one line."""
    print(
        ", ".join(
            f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in row.items()
        )
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
