"""Share of the possible promises that each way of admission makes, on instances small enough for an optimum.

    python -m benchmarks.scheduling.admission_optimum [--instances 40] [--runs 10] [--seed 0] [--json OUT]

First, newcomers at one instant on an empty server of 2 to 8 GPUs. The optimum is exact sequential admission:
a newcomer is admitted exactly if it and all admitted before can be in time together (a 0/1 program,
`tests/core/exact.py`). Printed are the newcomers that each method admits as a share of the optimum's,
refusals that were unnecessary given the method's earlier admissions, and time per decision.

Then jobs that arrive over time, on one server of 8 GPUs in the simulator, where each method keeps what it
admitted. If the search finds nothing, the last method asks the exact program, on the jobs still present.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np

from scheduling.core import decide
from scheduling.core.elasticflow import making_room
from scheduling.core.elasticflow.promises import Promises
from scheduling.core.elasticflow.reallocation import Planner
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.elasticflow.wider_search import searched as lifted_search
from scheduling.core.plans.charging import NO_CHARGES, charge_plans
from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem, build_problem
from scheduling.core.question.arrays import TIME_TOLERANCE, Draft, Plans, copy_plans, set_plan
from scheduling.core.question.snapshot import Fill, JobSnapshot, PlannerSettings, ServiceClass, Snapshot
from scheduling.policies.punctual import Punctual
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.run import Simulation
from simulation.outcome import JobEnd, RunOutcome
from simulation.policies import POLICIES
from simulation.workloads.workload import MeasuredThroughput, ModelProfile, Workload
from tests.core.exact import ExactJob, Feasibility, job_from, job_of, solve
from tests.core.small_instances import LOADS, SLOT_SECONDS, Load, least_gpu_time, random_job, random_snapshot

NODES_AT_ONE_INSTANT = 20_000
NODES_OF_LAST_RESORT = 500
GPUS, SLOT_OVER_TIME, JOBS_OVER_TIME = 8, 60.0, 30
GPU_TYPE = "measured"

Search = Callable[[Promises, int, SearchLimits], Plans | None]


@dataclass(frozen=True)
class Method:
    """One way of admission: a variant of filling, limits of the search, and the fallback after it."""

    name: str
    fill: Fill = Fill.UNIFORM
    limits: SearchLimits | None = None
    exact: bool = False


def any_size(fillings: int) -> SearchLimits:
    """Return a search for newcomers of any size."""
    return SearchLimits(everybody=True, most_fillings=fillings)


BOTH_FILLINGS = Method("both fillings", limits=any_size(1))
FILLINGS = tuple(Method(f"lifting, {number} fillings", limits=any_size(number)) for number in (2, 4, 8, 24))
TYPICAL = Method("lifting, 8 fillings, typical", limits=SearchLimits(most_fillings=8))
SHIPPED = Method("as shipped", limits=SearchLimits())
METHODS = (
    Method("elasticflow, uniform"),
    Method("elasticflow, suffix", Fill.SUFFIX),
    BOTH_FILLINGS,
    *FILLINGS,
    TYPICAL,
    SHIPPED,
)
OVER_TIME = (
    Method("elasticflow, uniform"),
    BOTH_FILLINGS,
    *FILLINGS[1:3],
    TYPICAL,
    SHIPPED,
    Method("lifting, 8 fillings, then exact", limits=any_size(8), exact=True),
)


# At one instant ------------------------------------------------------------------------------------


class Oracle:
    """Exact answers on subsets of one snapshot's newcomers, each computed once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.gpus = snapshot.servers[0].gpus
        self.jobs = {job.id: job_from(job, snapshot.now) for job in snapshot.jobs}
        self.known: dict[frozenset[str], bool] = {}
        self.seconds: list[float] = []
        self.undecided = 0

    def feasible(self, names: Sequence[str]) -> bool:
        """Return whether they can all be in time; False if the limit on nodes leaves it undecided."""
        key = frozenset(names)
        if key not in self.known:
            began = time.perf_counter()
            answer = solve(
                [self.jobs[name] for name in sorted(key)],
                self.gpus,
                SLOT_SECONDS,
                most_nodes=NODES_AT_ONE_INSTANT,
            )
            self.seconds.append(time.perf_counter() - began)
            self.undecided += answer.feasibility is Feasibility.UNDECIDED
            self.known[key] = answer.feasibility is Feasibility.FEASIBLE
        return self.known[key]

    def sequential(self) -> list[str]:
        """Return exact sequential admission in submission order."""
        chosen: list[str] = []
        for name in self.jobs:
            if self.feasible([*chosen, name]):
                chosen.append(name)
        return chosen


def admitted_by(method: Method, snapshot: Snapshot) -> tuple[list[tuple[str, bool]], list[float]]:
    """Return the method's verdicts in order, and wall seconds of each."""
    settings = PlannerSettings(slot_seconds=SLOT_SECONDS, fill=method.fill)
    problem = build_problem(replace(snapshot, settings=settings))
    admission = Planner(problem, search=method.limits).admission
    verdicts, seconds = [], []
    for row in problem.newcomers:
        began = time.perf_counter()
        verdict = admission.decide(row)
        seconds.append(time.perf_counter() - began)
        verdicts.append((verdict.job_id, verdict.promised))
    return verdicts, seconds


def at_one_instant(load: Load, pause: float, instances: int, seed: int) -> dict[str, Any]:
    """Run all methods on the same instances of one load."""
    admitted = {method.name: 0 for method in METHODS}
    needless = {method.name: 0 for method in METHODS}
    seconds: dict[str, list[float]] = {method.name: [] for method in METHODS}
    newcomers = optimum = undecided = 0
    exact_seconds: list[float] = []
    for number in range(instances):
        snapshot = random_snapshot(seed + number, load, pause=pause, most_jobs=6)
        oracle = Oracle(snapshot)
        optimum += len(oracle.sequential())
        newcomers += len(snapshot.jobs)
        for method in METHODS:
            verdicts, spent = admitted_by(method, snapshot)
            seconds[method.name] += spent
            chosen: list[str] = []
            for name, promised in verdicts:
                if promised:
                    chosen.append(name)
                elif oracle.feasible([*chosen, name]):
                    needless[method.name] += 1
            admitted[method.name] += len(chosen)
        exact_seconds += oracle.seconds
        undecided += oracle.undecided
    return {
        "newcomers": newcomers,
        "optimum": optimum,
        "exact_undecided": undecided,
        "exact_ms_mean": 1000 * float(np.mean(exact_seconds)),
        "exact_ms_max": 1000 * max(exact_seconds),
        "methods": {
            name: {
                "admitted": admitted[name],
                "share_of_optimum": admitted[name] / optimum,
                "needless_refusals": needless[name],
                "decision_ms_mean": 1000 * float(np.mean(seconds[name])),
                "decision_ms_p99": 1000 * float(np.percentile(seconds[name], 99)),
            }
            for name in admitted
        },
    }


# Over time -----------------------------------------------------------------------------------------


class Measured(Punctual):
    """`punctual` with other limits."""

    name = "measured"

    def __init__(self, limits: SearchLimits | None) -> None:
        self.limits = limits

    def decide_newcomers(self, problem: Problem) -> Answer:
        """Decide newcomers while present allocations stay as they are."""
        return decide.decide_newcomers(problem, search=self.limits)

    def reallocate(self, problem: Problem) -> Answer:
        """Divide the whole cluster anew from the next slot on."""
        return decide.reallocate(problem, search=self.limits)


@dataclass
class LastResort:
    """The search, followed by the exact program on all promises and the newcomer if it finds nothing."""

    asked: int = 0
    found: int = 0
    undecided: int = 0
    unaffordable: int = 0
    seconds: float = 0.0

    def __call__(self, admission: Promises, row: int, limits: SearchLimits) -> Plans | None:
        plans = lifted_search(admission, row, limits)
        if plans is not None:
            return plans
        self.asked += 1
        began = time.perf_counter()
        plans = self._exact(admission, [*admission.rows, row])
        self.seconds += time.perf_counter() - began
        self.found += plans is not None
        return plans

    def _exact(self, admission: Promises, rows: list[int]) -> Plans | None:
        problem = admission.problem
        asking = [one for one in rows if problem.jobs.finished_at[one] == inf]
        jobs: list[ExactJob] = [job_of(problem, one) for one in asking]
        answer = solve(jobs, problem.gpus, problem.slot, least_gpu_time=True, most_nodes=NODES_OF_LAST_RESORT)
        if answer.feasibility is not Feasibility.FEASIBLE:
            self.undecided += answer.feasibility is Feasibility.UNDECIDED
            return None
        plans = copy_plans(admission.plans)
        for one, sizes in zip(asking, answer.sizes, strict=True):
            plans = _with_sizes(problem, plans, one, sizes)
        charge_plans(problem.jobs, plans, np.array(asking), NO_CHARGES)
        if np.any(plans.finish[asking] > problem.due[asking] + 2 * TIME_TOLERANCE):
            return None
        affordable = admission.budget.affordable(plans, rows)
        self.unaffordable += affordable is None
        return affordable


def _with_sizes(problem: Problem, plans: Plans, row: int, sizes: np.ndarray) -> Plans:
    """Return the plans with one job's set to these GPUs per slot."""
    ends = int(np.flatnonzero(sizes)[-1]) + 1
    changes = [number for number in range(ends) if number == 0 or sizes[number] != sizes[number - 1]]
    times = np.array([*changes, ends], dtype=np.float64) * problem.slot + problem.origin
    gpus = np.array([*(sizes[number] for number in changes), 0], dtype=np.int64)
    return set_plan(plans, row, Draft(times, gpus), times.size, inf, 0.0)


@contextmanager
def policy_of(method: Method) -> Iterator[tuple[str, LastResort]]:
    """Register the method as a policy of the simulator within the context."""
    last_resort = LastResort()
    search: Search = last_resort if method.exact else lifted_search
    with (
        patch.dict(POLICIES, {method.name: Measured(method.limits)}),
        patch.object(making_room, "searched", search),
    ):
        yield method.name, last_resort


def random_workload(seed: int, load: Load) -> Workload:
    """Return jobs that arrive at random on 8 GPUs and together ask for the load's demand; each has its own
    curve."""
    rng = Random(seed)
    jobs: list[JobSnapshot] = [
        random_job(rng, f"job{number:02d}", GPUS, load.looseness, 0.0) for number in range(JOBS_OVER_TIME)
    ]
    stretch = SLOT_OVER_TIME / SLOT_SECONDS
    gap = stretch * float(np.mean([least_gpu_time(job) for job in jobs])) / (GPUS * load.demand)
    arrivals = np.cumsum([rng.expovariate(1 / gap) for _ in jobs])
    profiles = tuple(
        ModelProfile(
            job.id, GPUS, {GPU_TYPE: MeasuredThroughput(job.curve.levels, job.curve.throughput / stretch)}
        )
        for job in jobs
    )
    return Workload(
        name=f"small-{seed}",
        source="drawn",
        job_id=tuple(job.id for job in jobs),
        service_class=(ServiceClass.SLO,) * len(jobs),
        submitted_at=arrivals,
        deadline_at=arrivals + stretch * np.array([job.deadline_at for job in jobs]),
        iterations=np.array([job.remaining_iterations for job in jobs]),
        profile_of=np.arange(len(jobs)),
        requested_gpus=np.ones(len(jobs), dtype=np.int64),
        requested_seconds=np.ones(len(jobs)),
        profiles=profiles,
    )


def deadlines_met(outcome: RunOutcome) -> int:
    """Return the number of jobs completed in time."""
    done = np.array([end is JobEnd.COMPLETED for end in outcome.jobs.end])
    return int((done & (outcome.jobs.completed_at <= outcome.jobs.deadline_at + 1e-3)).sum())


def over_time(load: Load, pauses: Pauses, runs: int, seed: int) -> dict[str, Any]:
    """Run all methods on the same workloads."""
    workloads = [random_workload(seed + number, load) for number in range(runs)]
    figures: dict[str, Any] = {}
    for method in OVER_TIME:
        with policy_of(method) as (name, last_resort):
            settings = SimulationSettings(
                name,
                (PoolSize(GPU_TYPE, 1, GPUS),),
                slot_seconds=SLOT_OVER_TIME,
                pauses=pauses,
                fill=method.fill,
            )
            outcomes = [Simulation(workload, settings).run() for workload in workloads]
        figures[name] = {
            "met": sum(map(deadlines_met, outcomes)),
            "promised": sum(sum(outcome.jobs.promised) for outcome in outcomes),
            "promised_late": sum(len(outcome.broken) for outcome in outcomes),
            "wall_seconds": sum(outcome.wall_seconds for outcome in outcomes),
        }
        if method.exact:
            figures[name]["last_resort"] = dict(vars(last_resort))
    return {"jobs": runs * JOBS_OVER_TIME, "methods": figures}


# Output --------------------------------------------------------------------------------------------


def print_instant(title: str, figures: dict[str, Any]) -> None:
    """Print one load at one instant as a table."""
    print(
        f"\n{title}: {figures['newcomers']} newcomers, exact admits {figures['optimum']}"
        f" ({figures['exact_ms_mean']:.0f} ms a question, at most {figures['exact_ms_max']:.0f};"
        f" {figures['exact_undecided']} undecided)"
    )
    print(f"  {'method':34s} admitted  of optimum  needless refusals  ms mean    p99")
    for name, row in figures["methods"].items():
        print(
            f"  {name:34s} {row['admitted']:8d}  {row['share_of_optimum']:10.3f}  "
            f"{row['needless_refusals']:17d}  {row['decision_ms_mean']:7.2f}  {row['decision_ms_p99']:5.2f}"
        )


def print_over_time(title: str, figures: dict[str, Any]) -> None:
    """Print one load over time as a table."""
    print(f"\n{title}: {figures['jobs']} jobs")
    print(f"  {'method':34s}      met  promised  promised late  seconds")
    for name, row in figures["methods"].items():
        print(
            f"  {name:34s} {row['met']:8d}  {row['promised']:8d}  {row['promised_late']:13d}  "
            f"{row['wall_seconds']:7.2f}"
        )
        resort = row.get("last_resort")
        if resort:
            print(
                f"    exact program asked {resort['asked']} times: {resort['found']} plans, "
                f"{resort['undecided']} undecided, {resort['unaffordable']} beyond the pause budget; "
                f"{resort['seconds']:.1f} s"
            )


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    parser.add_argument("--instances", type=int, default=40, help="instances of each load at one instant")
    parser.add_argument("--runs", type=int, default=10, help="workloads of each load over time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    random = random_snapshot(options.seed, LOADS["light"], pause=0.1)
    for method in METHODS:
        admitted_by(method, random)  # loads the compiled code
    results: dict[str, Any] = {"seed": options.seed, "at_one_instant": {}, "over_time": {}}
    for name, load in LOADS.items():
        for pause in (0.0, 0.15):
            title = f"{name}, {'no pauses' if not pause else f'pauses up to {pause:g} slots'}"
            figures = at_one_instant(load, pause, options.instances, options.seed)
            results["at_one_instant"][title] = figures
            print_instant(f"At one instant, {title}", figures)
    for name, load in LOADS.items():
        for pauses in Pauses:
            title = f"{name}, pauses {pauses}"
            figures = over_time(load, pauses, options.runs, options.seed)
            results["over_time"][title] = figures
            print_over_time(f"Over time, {title}", figures)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
