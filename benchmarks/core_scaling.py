"""How long the decision core takes for one event and for a full replan, against jobs and GPUs.

    python -m benchmarks.core_scaling [--json OUT] [--largest 2000] [--repeat 3] [--seed 0]

Each row is a cluster in steady state: jobs hold GPUs and stored plans from a first replan. Measured are
an arrival (``admit`` of one newcomer that is promised, and of one that is refused), the search for an
offer, and a full replan right after an arrival and after a completion. Times depend on the machine; the
ratios (growth from row to row against growth of jobs, event against replan) do not.
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

from scheduling.core.curves import curve_from_measurements
from scheduling.core.decide import admit, find_offer, replan
from scheduling.core.decision import Decision
from scheduling.core.pauses import published_pause_seconds
from scheduling.core.snapshot import (
    NO_DEADLINE,
    JobSnapshot,
    PlannerSettings,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
)

GPUS_PER_SERVER = 8
SLOT_SECONDS = 60.0
BEST_EFFORT_SHARE = 0.3
SIZES = ((50, 512), (100, 1024), (300, 1024), (500, 4096), (1000, 8192), (2000, 16384))


def random_job(rng: np.random.Generator, number: int, now: float) -> JobSnapshot:
    """A job of minutes to days; its curve rises with a random efficiency per doubling."""
    efficiency = rng.uniform(0.6, 0.97)
    rate, rates = rng.uniform(1.0, 20.0), {}
    for doubling in range(int(rng.integers(3, 8))):
        rates[2**doubling] = rate
        rate *= 2 * efficiency
    curve = curve_from_measurements(rates, pause_seconds=published_pause_seconds)
    alone_seconds = 60.0 * 10 ** rng.uniform(1.0, 3.2)
    best_effort = rng.random() < BEST_EFFORT_SHARE
    # Deadlines are set against the speed on a middle level, as users who need several GPUs would.
    middle = float(curve.throughput[curve.levels.size // 2])
    deadline = now + alone_seconds * rng.uniform(0.5, 1.5) + 120.0
    return JobSnapshot(
        id=f"job-{number:06d}",
        service_class=ServiceClass.BEST_EFFORT if best_effort else ServiceClass.SLO,
        submitted_at=now - rng.uniform(0, 50),
        deadline_at=NO_DEADLINE if best_effort else deadline,
        remaining_iterations=middle * alone_seconds,
        curve=curve,
        newcomer=True,
        finishing_seconds=2.0,
    )


def continued(snapshot: Snapshot, decision: Decision, seconds: float) -> Snapshot:
    """The cluster ``seconds`` after a decision took effect, everybody having run as planned."""
    verdicts = {verdict.job_id: verdict for verdict in decision.verdicts}
    pauses = {change.job_id: change.pause_seconds for change in decision.changes}
    jobs = []
    for job in snapshot.jobs:
        verdict = verdicts.get(job.id)
        if verdict is not None and not verdict.admitted:
            continue
        addresses = decision.placements.get(job.id, ())
        pause = max(pauses.get(job.id, 0.0), job.pause_left_seconds)
        rate = (
            float(job.curve.throughput[np.searchsorted(job.curve.levels, len(addresses))])
            if addresses
            else 0.0
        )
        done = rate * max(0.0, seconds - pause)
        if done >= job.remaining_iterations:
            continue
        jobs.append(
            replace(
                job,
                newcomer=False,
                promised=verdict.promised if verdict is not None else job.promised,
                gpus_now=len(addresses),
                placement=addresses,
                remaining_iterations=job.remaining_iterations - done,
                pause_left_seconds=max(0.0, pause - seconds) if addresses else 0.0,
                stored_plan=decision.plans.get(job.id, job.stored_plan),
            )
        )
    now = snapshot.now + seconds
    return replace(snapshot, now=now, next_slot_at=now, jobs=tuple(jobs))


def steady_cluster(jobs: int, gpus: int, seed: int) -> tuple[Snapshot, np.random.Generator]:
    """A cluster on which about ``jobs`` jobs are active, a minute after a replan."""
    rng = np.random.default_rng(seed)
    servers = tuple(
        ServerSnapshot(f"server-{number}", GPUS_PER_SERVER) for number in range(gpus // GPUS_PER_SERVER)
    )
    settings = PlannerSettings(slot_seconds=SLOT_SECONDS)
    snapshot = Snapshot(now=0.0, next_slot_at=0.0, servers=servers, jobs=(), settings=settings)
    number = 0
    for _ in range(20):
        missing = jobs - len(snapshot.jobs)
        if missing <= jobs * 0.01:
            break
        newcomers = tuple(random_job(rng, number + extra, snapshot.now) for extra in range(missing))
        number += missing
        crowd = replace(snapshot, jobs=(*snapshot.jobs, *newcomers))
        snapshot = continued(crowd, replan(crowd), SLOT_SECONDS)
    return snapshot, rng


def timed(question: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """Median wall seconds, and the last answer."""
    seconds, answer = [], None
    for _ in range(repeat):
        began = time.perf_counter()
        answer = question()
        seconds.append(time.perf_counter() - began)
    return median(seconds), answer


def measure(jobs: int, gpus: int, repeat: int, seed: int) -> dict[str, float]:
    """All figures of one row."""
    snapshot, rng = steady_cluster(jobs, gpus, seed)
    between = replace(snapshot, next_slot_at=snapshot.now + SLOT_SECONDS / 2)
    easy = replace(random_job(rng, 10**6, snapshot.now), service_class=ServiceClass.SLO)
    easy = replace(easy, deadline_at=snapshot.now + 30 * 86400.0)
    alone = easy.remaining_iterations / float(easy.curve.throughput[-1])
    hard = replace(easy, deadline_at=snapshot.now + alone * 1.02 + 120.0)
    admit_seconds, admitted = timed(lambda: admit(replace(between, jobs=(*between.jobs, easy))), repeat)
    decline_seconds, declined = timed(lambda: admit(replace(between, jobs=(*between.jobs, hard))), repeat)
    offer_seconds, _ = timed(lambda: find_offer(between, hard), repeat)
    arrival_seconds, arrived = timed(lambda: replan(replace(snapshot, jobs=(*snapshot.jobs, easy))), repeat)
    running = next(job for job in snapshot.jobs if job.gpus_now > 0)
    without = replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job is not running))
    completion_seconds, _ = timed(lambda: replan(without), repeat)
    return {
        "jobs": len(snapshot.jobs),
        "gpus": gpus,
        "promised": sum(job.promised for job in snapshot.jobs),
        "running": sum(job.gpus_now > 0 for job in snapshot.jobs),
        "admit_ms": 1000 * admit_seconds,
        "tight_newcomer_ms": 1000 * decline_seconds,
        "tight_newcomer_admitted": float(declined.verdicts[0].admitted),
        "offer_ms": 1000 * offer_seconds,
        "replan_arrival_ms": 1000 * arrival_seconds,
        "replan_completion_ms": 1000 * completion_seconds,
        "changes": len(arrived.changes),
        "admitted": float(admitted.verdicts[0].admitted),
        "event_to_replan": admit_seconds / arrival_seconds,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    parser.add_argument("--largest", type=int, default=2000, help="most jobs to measure with")
    parser.add_argument("--repeat", type=int, default=3, help="runs per figure; the median is shown")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    measure(20, 64, 1, options.seed)
    setup_seconds = time.perf_counter() - began
    print(f"compiling or loading the kernels: {setup_seconds:.1f} s\n")
    columns = (
        "jobs", "gpus", "promised", "running", "admit_ms", "tight_newcomer_ms", "offer_ms",
        "replan_arrival_ms", "replan_completion_ms", "changes", "event_to_replan",
    )  # fmt: skip
    print("  ".join(f"{name:>{max(9, len(name))}}" for name in columns) + "   growth of replan / of jobs")
    rows: list[dict[str, float]] = []
    for jobs, gpus in SIZES:
        if jobs > options.largest:
            continue
        row = measure(jobs, gpus, options.repeat, options.seed)
        if rows:
            before = rows[-1]
            growth = row["replan_arrival_ms"] / before["replan_arrival_ms"]
            row["replan_growth_to_job_growth"] = growth / (row["jobs"] / before["jobs"])
        rows.append(row)
        cells = (f"{row[name]:>{max(9, len(name))}.4g}" for name in columns)
        ratio = row.get("replan_growth_to_job_growth")
        print("  ".join(cells) + ("" if ratio is None else f"   {ratio:.2f}"), flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"setup_seconds": setup_seconds, "rows": rows}, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
