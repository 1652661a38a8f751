"""Time of the decision core for one event and for a full replan, against jobs and GPUs.

    python -m benchmarks.scheduling.core_scaling [--json OUT] [--largest 2000] [--growth]
        [--repeat 3] [--seed 0]

Each row is a cluster in steady state: jobs hold GPUs and stored plans from a first replan. Measured are an
arrival (``admit`` of one newcomer that is promised, and of one that is refused), the search for an offer, and
a full replan right after an arrival and after a completion. Times are CPU time of the one thread and depend
on the machine; the ratios (growth from row to row against growth of jobs, event against replan) do not.

With ``--growth`` jobs and GPUs then grow one at a time, from 100 to 10,000 jobs and from 128 to 131,072 GPUs,
with a bounded number of pieces of the capacity timeline: slots are half an hour long and all jobs end within
some days. Printed is the exponent of each step: time grew as the size to that power.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, log
from statistics import median
from typing import Any

import numpy as np

from scheduling.core.decide import admit, find_offer, replan
from scheduling.core.elasticflow.pause_budget import published_pause_seconds
from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.decision import Decision
from scheduling.core.question.snapshot import (
    NO_DEADLINE,
    JobSnapshot,
    PlannerSettings,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
)

GPUS_PER_SERVER = 8
BEST_EFFORT_SHARE = 0.3
SIZES = ((50, 512), (100, 1024), (300, 1024), (500, 4096), (1000, 8192), (2000, 16384))
GROWING_JOBS = tuple((jobs, 131_072) for jobs in (120, 240, 480, 960, 1900, 3800, 7500, 12_000))
"""These include a sixth that ends within the slot before the measurement: the last row has about 10,000
active jobs."""
GROWING_GPUS = tuple((400, 128 * 4**step) for step in range(6))


@dataclass(frozen=True)
class Shape:
    """Distribution of jobs. ``minutes``: decimal logarithms of the shortest and the longest job's minutes on
    a middle level.

    ``bounded``: deadlines are on slots, and jobs hold promises from the start instead of being decided one by
    one, which would take hours for 10,000.
    """

    slot_seconds: float
    minutes: tuple[float, float]
    bounded: bool


USUAL = Shape(60.0, (1.0, 3.2), bounded=False)
BOUNDED = Shape(1800.0, (2.0, 3.0), bounded=True)


def random_job(rng: np.random.Generator, number: int, now: float, shape: Shape) -> JobSnapshot:
    """Return a job of minutes to days; its curve rises with a random efficiency per doubling."""
    efficiency = rng.uniform(0.6, 0.97)
    rate, rates = rng.uniform(1.0, 20.0), {}
    for doubling in range(int(rng.integers(3, 8))):
        rates[2**doubling] = rate
        rate *= 2 * efficiency
    curve = curve_from_measurements(rates, pause_seconds=published_pause_seconds)
    alone_seconds = 60.0 * 10 ** rng.uniform(*shape.minutes)
    best_effort = rng.random() < BEST_EFFORT_SHARE
    # Deadlines are relative to the speed on a middle level, as for users who need several GPUs.
    middle = float(curve.throughput[curve.levels.size // 2])
    deadline = now + alone_seconds * rng.uniform(0.5, 1.5) + 2 * shape.slot_seconds
    if shape.bounded:
        deadline = ceil(deadline / shape.slot_seconds) * shape.slot_seconds
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
    """Return the cluster ``seconds`` after a decision took effect, with all jobs run as planned."""
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


def steady_cluster(jobs: int, gpus: int, seed: int, shape: Shape) -> tuple[Snapshot, np.random.Generator]:
    """Return a cluster with about ``jobs`` active jobs, a slot after a replan."""
    rng = np.random.default_rng(seed)
    servers = tuple(
        ServerSnapshot(f"server-{number}", GPUS_PER_SERVER) for number in range(gpus // GPUS_PER_SERVER)
    )
    settings = PlannerSettings(slot_seconds=shape.slot_seconds)
    snapshot = Snapshot(now=0.0, next_slot_at=0.0, servers=servers, jobs=(), settings=settings)
    number = 0
    for _ in range(3 if shape.bounded else 20):
        missing = jobs - len(snapshot.jobs)
        if missing <= jobs * 0.01:
            break
        newcomers = tuple(random_job(rng, number + extra, snapshot.now, shape) for extra in range(missing))
        if shape.bounded:
            newcomers = tuple(
                replace(job, newcomer=False, promised=job.service_class is ServiceClass.SLO)
                for job in newcomers
            )
        number += missing
        crowd = replace(snapshot, jobs=(*snapshot.jobs, *newcomers))
        snapshot = continued(crowd, replan(crowd), shape.slot_seconds)
    return snapshot, rng


def timed(question: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """Return median CPU seconds, which other work on the machine disturbs less than wall time, and the last
    answer."""
    seconds, answer = [], None
    for _ in range(repeat):
        began = time.process_time()
        answer = question()
        seconds.append(time.process_time() - began)
    return median(seconds), answer


def timeline_pieces(decision: Decision) -> int:
    """Return the times at which some plan changes: the most pieces of the capacity timeline."""
    ends = [np.concatenate((plan.start, plan.end)) for plan in decision.plans.values()]
    return int(np.unique(np.concatenate(ends).round(3)).size)


def measure(jobs: int, gpus: int, repeat: int, seed: int, shape: Shape = USUAL) -> dict[str, float]:
    """Return all figures of one row."""
    snapshot, rng = steady_cluster(jobs, gpus, seed, shape)
    between = replace(snapshot, next_slot_at=snapshot.now + shape.slot_seconds / 2)
    easy = replace(random_job(rng, 10**6, snapshot.now, shape), service_class=ServiceClass.SLO)
    easy = replace(easy, deadline_at=snapshot.now + 30 * 86400.0)
    alone = easy.remaining_iterations / float(easy.curve.throughput[-1])
    hard = replace(easy, deadline_at=snapshot.now + alone * 1.02 + 2 * shape.slot_seconds)
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
        "pieces": timeline_pieces(arrived),
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


COLUMNS = (
    "jobs", "gpus", "promised", "running", "pieces", "admit_ms", "tight_newcomer_ms", "offer_ms",
    "replan_arrival_ms", "replan_completion_ms", "changes", "event_to_replan",
)  # fmt: skip
GROWING = ("admit_ms", "tight_newcomer_ms", "offer_ms", "replan_arrival_ms")


def cells_of(row: dict[str, float]) -> str:
    """Return a row of the table."""
    return "  ".join(f"{row[name]:>{max(9, len(name))}.4g}" for name in COLUMNS)


def print_heading(last: str) -> None:
    """Print the table's heading."""
    print("  ".join(f"{name:>{max(9, len(name))}}" for name in COLUMNS) + "   " + last)


def usual_rows(largest: int, repeat: int, seed: int) -> list[dict[str, float]]:
    """Return rows with jobs and GPUs growing together."""
    print_heading("growth of replan / of jobs")
    rows: list[dict[str, float]] = []
    for jobs, gpus in SIZES:
        if jobs > largest:
            continue
        row = measure(jobs, gpus, repeat, seed)
        if rows:
            before = rows[-1]
            growth = row["replan_arrival_ms"] / before["replan_arrival_ms"]
            row["replan_growth_to_job_growth"] = growth / (row["jobs"] / before["jobs"])
        rows.append(row)
        ratio = row.get("replan_growth_to_job_growth")
        print(cells_of(row) + ("" if ratio is None else f"   {ratio:.2f}"), flush=True)
    return rows


def growth_rows(
    sizes: tuple[tuple[int, int], ...], by: str, repeat: int, seed: int
) -> list[dict[str, float]]:
    """Return rows with jobs or GPUs growing, the timeline bounded, and each step's exponent."""
    print(f"\nOnly {by} grow, timeline bounded")
    print_heading("exponents of " + ", ".join(GROWING))
    rows: list[dict[str, float]] = []
    for jobs, gpus in sizes:
        row = measure(jobs, gpus, repeat, seed, BOUNDED)
        if rows:
            before = rows[-1]
            step = log(row[by] / before[by])
            row |= {f"{name}_exponent": log(row[name] / before[name]) / step for name in GROWING}
        rows.append(row)
        exponents = [row[f"{name}_exponent"] for name in GROWING] if len(rows) > 1 else []
        print(cells_of(row) + "   " + " ".join(f"{one:5.2f}" for one in exponents), flush=True)
    first, last = rows[0], rows[-1]
    whole = {name: log(last[name] / first[name]) / log(last[by] / first[by]) for name in GROWING}
    print(
        f"  from {first[by]:.0f} to {last[by]:.0f} {by}: "
        + ", ".join(f"{n} {e:.2f}" for n, e in whole.items())
    )
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    parser.add_argument(
        "--largest", type=int, default=2000, help="most jobs to measure with, growing with GPUs"
    )
    parser.add_argument(
        "--growth", action="store_true", help="also let jobs and GPUs grow one at a time (minutes)"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs per figure; the median is shown")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    measure(20, 64, 1, options.seed)
    setup_seconds = time.perf_counter() - began
    print(f"compiling or loading the kernels: {setup_seconds:.1f} s\n")
    results: dict[str, Any] = {"setup_seconds": setup_seconds}
    results["rows"] = usual_rows(options.largest, options.repeat, options.seed)
    if options.growth:
        results["growing_jobs"] = growth_rows(GROWING_JOBS, "jobs", options.repeat, options.seed)
        results["growing_gpus"] = growth_rows(GROWING_GPUS, "gpus", options.repeat, options.seed)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
