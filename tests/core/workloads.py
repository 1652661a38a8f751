"""Random small workloads: jobs with random curves, work, deadlines and pauses."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.snapshot import (
    NO_DEADLINE,
    Fill,
    JobSnapshot,
    PlannerSettings,
    ServerSnapshot,
    ServiceClass,
)


@dataclass(frozen=True)
class Workload:
    """A cluster and what arrives at it."""

    servers: tuple[ServerSnapshot, ...]
    settings: PlannerSettings
    jobs: tuple[JobSnapshot, ...]


def random_workload(
    seed: int,
    *,
    fill: Fill = Fill.UNIFORM,
    pauses: bool = True,
    stored_plans: bool = True,
    best_effort: float = 0.25,
    most_jobs: int = 10,
    off_slot: bool = True,
    tightness: tuple[float, float] = (1.0, 3.0),
) -> Workload:
    """Return the workload of a seed; the clusters are small enough for jobs to compete."""
    rng = Random(seed)
    shape = rng.choice([(2,), (4,), (4, 4), (2, 2), (8,), (4, 2), (4, 4, 4), (6,), (6, 6), (6, 2)])
    servers = tuple(ServerSnapshot(f"server{number}", gpus) for number, gpus in enumerate(shape))
    slot = rng.choice([1.0, 5.0, 60.0])
    pause_scale = rng.choice([0.02, 0.2, 1.0]) * slot if pauses else 0.0
    jobs = []
    at = 0.0
    for number in range(rng.randint(2, most_jobs)):
        if rng.random() < 0.6:
            at += rng.expovariate(1.0) * rng.choice([0.3, 1.0, 3.0]) * slot
            if not off_slot or rng.random() < 0.4:
                at = round(at / slot) * slot
        jobs.append(
            _random_job(rng, f"job{number:02d}", at, slot, sum(shape), pause_scale, best_effort, tightness)
        )
    settings = PlannerSettings(slot_seconds=slot, fill=fill, stored_plans=stored_plans)
    return Workload(servers, settings, tuple(jobs))


def _random_job(
    rng: Random,
    name: str,
    at: float,
    slot: float,
    gpus: int,
    pause_scale: float,
    best_effort: float,
    tightness: tuple[float, float],
) -> JobSnapshot:
    rate, rates, level = rng.uniform(0.5, 2.0), {}, 1
    while level <= min(gpus, 8):
        if level > 1 or rng.random() < 0.85:
            rates[level] = rate
        rate *= rng.uniform(1.05, 2.05)
        level *= 2
    pause = {gpus: pause_scale * rng.uniform(0.3, 1.5) for gpus in rates}
    curve = curve_from_measurements(rates, pause_seconds=pause.__getitem__)
    seconds = slot * rng.uniform(0.3, 6.0)
    chosen = rng.choice(list(rates.values()))
    kind = rng.random()
    service = ServiceClass.BEST_EFFORT if kind < best_effort else ServiceClass.SLO
    if kind > 0.93:
        service = ServiceClass.SOFT
    finishing = rng.choice([0.0, 0.0, pause_scale * 0.3])
    deadline = at + seconds * rng.uniform(*tightness) + rng.choice([0.0, finishing, 3 * pause_scale])
    if rng.random() < 0.3:
        deadline = max(at + 0.5 * slot, round(deadline / slot) * slot)
    return JobSnapshot(
        id=name,
        service_class=service,
        submitted_at=at,
        deadline_at=NO_DEADLINE if service is ServiceClass.BEST_EFFORT else deadline,
        remaining_iterations=chosen * seconds * rng.uniform(0.8, 1.0),
        curve=curve,
        newcomer=True,
        finishing_seconds=finishing,
    )
