"""Planning for one newcomer beside many active jobs, through the services.

    python -m benchmarks.long.one_newcomer [--jobs 100 1000] [--gpus 4096]

Promised jobs fill a declared cluster without agents (`benchmarks.long.burst_live`), as many as have room
train. Then single newcomers are decided, in the middle of a slot and at its end. Printed are medians of nine
passes: CPU seconds of the planner's process, statements of the database, seconds in them and in the core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from datetime import timedelta

import numpy as np

from benchmarks.long.burst_live import DeclaredCluster, Spent, passes_until_decided, servers_of_its_own
from benchmarks.long.burst_newcomers import curves, newcomers
from launch.compile_core import compile_core
from scheduling.core.question.snapshot import JobSnapshot

PASSES = 9


def main() -> int:
    """Print two rows for each number of jobs; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--gpus", type=int, default=4096)
    options = parser.parse_args()
    compile_core()
    with servers_of_its_own():
        for count in options.jobs:
            measure(count, options.gpus)
    return 0


def measure(count: int, gpus: int) -> None:
    """Print the rows of one number of jobs."""
    from django.core.management import call_command
    from django.utils import timezone

    call_command("flush", interactive=False, verbosity=0)
    cluster = DeclaredCluster(gpus, curves(np.random.default_rng(0), gpus))
    jobs = newcomers(count + 2 * PASSES + 1, gpus, "small", 0)
    cluster.submit(jobs[:count], timezone.now(), by_service=False)
    passes_until_decided(count)
    let_train()
    rest = iter(jobs[count:])
    decide(cluster, next(rest), at_the_end=False)  # prepares the statements
    for at_the_end in (False, True):
        rows = [decide(cluster, next(rest), at_the_end=at_the_end) for _ in range(PASSES)]
        cpu, statements, sql, core = (statistics.median(column) for column in zip(*rows, strict=True))
        where = "at the end of a slot" if at_the_end else "in a slot"
        print(
            f"{count} jobs, {gpus} GPUs, {where}: {cpu:.2f} s of CPU, {statements:.0f} statements, "
            f"{sql:.2f} s in them, {core:.2f} s in the core",
            flush=True,
        )


def let_train() -> None:
    """Let every job that was given GPUs train on them."""
    from django.utils import timezone

    from scheduling.choices import AssignmentState, GenerationState, Goal, JobState
    from scheduling.models import Assignment, Generation, Job

    now = timezone.now()
    Generation.objects.exclude(state=GenerationState.RETIRED).update(
        state=GenerationState.LIVE, goal=Goal.TRAIN
    )
    Assignment.objects.exclude(state=AssignmentState.RELEASED).update(state=AssignmentState.HELD, held_at=now)
    Job.objects.filter(generations__state=GenerationState.LIVE).update(
        state=JobState.RUNNING, iterations_reported_at=now
    )


def decide(
    cluster: DeclaredCluster, newcomer: tuple[JobSnapshot, int], *, at_the_end: bool
) -> tuple[float, int, float, float]:
    """Submit one job and plan. Return CPU seconds, statements, and seconds in them and in the core."""
    from django.utils import timezone

    from cluster.models import Cluster
    from scheduling.services.planning.planning import run_planner

    now = timezone.now()
    ends_at = None if at_the_end else now + timedelta(hours=1)
    Cluster.objects.update(next_slot_at=ends_at, next_wake_at=None)
    cluster.submit([newcomer], now, by_service=False)
    spent = Spent()
    with spent.counted():
        began = time.process_time()
        run_planner("one newcomer")
        cpu = time.process_time() - began
    return cpu, spent.statements, spent.sql, spent.core


if __name__ == "__main__":
    raise SystemExit(main())
