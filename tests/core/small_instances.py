"""Small random instances that can be solved exactly: a few jobs, up to 8 GPUs, up to 10 slots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from scheduling.core.decide import decide_newcomers
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.problem.problem import build_problem
from scheduling.core.question.curves import curve_from_measurements, throughput_at
from scheduling.core.question.decision import Decision
from scheduling.core.question.snapshot import (
    JobSnapshot,
    PlannerSettings,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
)

SLOT_SECONDS = 1.0
MOST_SLOTS = 10


@dataclass(frozen=True)
class Load:
    """The load of the cluster. ``demand``: the least GPU time of all jobs divided by the GPU time until the
    last deadline; ``looseness``: bounds of a deadline, in multiples of the job's time on a random level."""

    demand: float
    looseness: tuple[float, float]


LOADS = {
    "light": Load(0.4, (1.05, 3.0)),
    "light, tight deadlines": Load(0.4, (1.02, 1.4)),
    "loaded": Load(0.8, (1.05, 3.0)),
    "overloaded": Load(1.5, (1.02, 1.8)),
}


def random_job(
    rng: Random, name: str, gpus: int, looseness: tuple[float, float], pause: float, at: float = 0.0
) -> JobSnapshot:
    """Return a newcomer with a curve that rises by a random factor at each doubling.

    ``pause``: the largest pause, in slots; 0 for none.
    """
    rate, rates, level = rng.uniform(0.5, 2.0), {}, rng.choice([1, 1, 1, 2])
    while level <= gpus:
        rates[level] = rate
        rate *= rng.uniform(1.1, 2.0)
        level *= 2
    pauses = {count: pause * SLOT_SECONDS * rng.uniform(0.1, 1.0) for count in rates}
    seconds = SLOT_SECONDS * rng.uniform(0.5, 5.0)
    loose = min(MOST_SLOTS * SLOT_SECONDS, seconds * rng.uniform(*looseness) + 2 * max(pauses.values()))
    if rng.random() < 0.3:
        loose = max(SLOT_SECONDS, round(loose / SLOT_SECONDS) * SLOT_SECONDS)
    return JobSnapshot(
        id=name,
        service_class=ServiceClass.SLO,
        submitted_at=at,
        deadline_at=at + loose,
        remaining_iterations=rng.choice(list(rates.values())) * min(seconds, loose),
        curve=curve_from_measurements(rates, pause_seconds=pauses.__getitem__),
        newcomer=True,
    )


def least_gpu_time(job: JobSnapshot) -> float:
    """Return the GPU seconds that the job needs on its most efficient level."""
    return float((job.curve.levels / job.curve.throughput).min()) * job.remaining_iterations


def random_snapshot(
    seed: int, load: Load, *, pause: float, most_jobs: int = 8, settings: PlannerSettings | None = None
) -> Snapshot:
    """Return newcomers at one instant on an empty server of 2 to 8 GPUs that reach the load's demand."""
    rng = Random(seed)
    gpus = rng.choice([2, 4, 8])
    jobs: list[JobSnapshot] = []
    while len(jobs) < most_jobs:
        jobs.append(random_job(rng, f"job{len(jobs)}", gpus, load.looseness, pause))
        horizon = max(job.deadline_at for job in jobs)
        if len(jobs) > 1 and sum(map(least_gpu_time, jobs)) >= load.demand * gpus * horizon:
            break
    return Snapshot(
        now=0.0,
        next_slot_at=0.0,
        servers=(ServerSnapshot("server", gpus),),
        jobs=tuple(jobs),
        settings=settings or PlannerSettings(slot_seconds=SLOT_SECONDS),
    )


def admitted(snapshot: Snapshot, search: SearchLimits | None) -> tuple[str, ...]:
    """Return the promised jobs, decided one by one, either as in the paper or with a search before each
    refusal."""
    verdicts = decide_newcomers(build_problem(snapshot), search=search).verdicts
    return tuple(verdict.job_id for verdict in verdicts if verdict.promised)


def one_slot_later(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """Return the cluster one slot after a replan; completed and declined jobs are removed."""
    verdicts = {verdict.job_id: verdict for verdict in decision.verdicts}
    charged = {change.job_id: change.pause_seconds for change in decision.changes}
    jobs = []
    for job in snapshot.jobs:
        verdict = verdicts.get(job.id)
        if verdict is not None and not verdict.admitted:
            continue
        addresses = decision.placements.get(job.id, ())
        rate = throughput_at(job.curve, len(addresses))
        pause = max(charged.get(job.id, 0.0), job.pause_left_seconds) if addresses else 0.0
        remaining = job.remaining_iterations - rate * max(0.0, SLOT_SECONDS - pause)
        if remaining <= 1e-6 * rate:
            continue
        jobs.append(
            replace(
                job,
                newcomer=False,
                promised=job.promised or (verdict is not None and verdict.promised),
                remaining_iterations=remaining,
                gpus_now=len(addresses),
                placement=addresses,
                pause_left_seconds=max(0.0, pause - SLOT_SECONDS),
                stored_plan=decision.plans.get(job.id, job.stored_plan),
            )
        )
    now = snapshot.now + SLOT_SECONDS
    return replace(snapshot, now=now, next_slot_at=now, jobs=tuple(jobs))
