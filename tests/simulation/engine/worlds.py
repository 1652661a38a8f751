"""Small worlds to simulate: hand-made, or random with all kinds of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from scheduling.core.question.snapshot import Fill, ServiceClass
from simulation.engine.asked.lending import Lending
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import Imperfections, PoolSize, SimulationSettings
from simulation.engine.asked.sharing import SharingSettings
from simulation.engine.outside.happenings import Happening, HappeningKind
from simulation.inference.usage import UsageSeries
from simulation.workloads.workload import MeasuredThroughput, ModelProfile, Workload

C3 = {1: 1.0, 2: 1.5}
C4 = {1: 1.0, 2: 1.5, 4: 2.0}


@dataclass(frozen=True)
class Job:
    """One job of a hand-made workload; no deadline means best effort."""

    at: float
    iterations: float
    deadline_at: float = float("inf")
    curve: Mapping[int, float] | None = None
    service_class: ServiceClass | None = None
    requested_gpus: int = 1
    batch: int = 64
    by_kind: Mapping[str, Mapping[int, float]] | None = None


def points(curve: Mapping[int, float]) -> MeasuredThroughput:
    return MeasuredThroughput(
        np.array(sorted(curve), dtype=np.int64), np.array([curve[gpus] for gpus in sorted(curve)])
    )


def workload(jobs: Sequence[Job], name: str = "hand-made") -> Workload:
    profiles = tuple(
        ModelProfile(
            f"model-{number}",
            job.batch,
            {kind: points(curve) for kind, curve in (job.by_kind or {"gpu": job.curve or C4}).items()},
        )
        for number, job in enumerate(jobs)
    )
    classes = tuple(
        job.service_class
        or (ServiceClass.BEST_EFFORT if job.deadline_at == float("inf") else ServiceClass.SLO)
        for job in jobs
    )
    return Workload(
        name=name,
        source="made by hand",
        job_id=tuple(f"job-{number:03d}" for number in range(len(jobs))),
        service_class=classes,
        submitted_at=np.array([job.at for job in jobs], dtype=np.float64),
        deadline_at=np.array([job.deadline_at for job in jobs], dtype=np.float64),
        iterations=np.array([job.iterations for job in jobs], dtype=np.float64),
        profile_of=np.arange(len(jobs)),
        requested_gpus=np.array([job.requested_gpus for job in jobs], dtype=np.int64),
        requested_seconds=np.array(
            [job.iterations / (job.curve or C4).get(job.requested_gpus, 1.0) for job in jobs]
        ),
        profiles=profiles,
    )


def settings(
    policy: str = "elasticflow",
    servers: int = 1,
    gpus: int = 4,
    *,
    slot: float = 1.0,
    pauses: Pauses = Pauses.NONE,
    **more: object,
) -> SimulationSettings:
    return SimulationSettings(
        policy=policy,
        pools=(PoolSize("gpu", servers, gpus),),
        slot_seconds=slot,
        pauses=pauses,
        check_invariants=True,
        **more,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class World:
    """The workload, settings and events of one random run."""

    workload: Workload
    settings: SimulationSettings
    happenings: tuple[Happening, ...]


def random_world(
    seed: int,
    *,
    policy: str = "punctual",
    failures: int = 0,
    reserve: int = 0,
    exact: bool = True,
    lending: bool = False,
) -> World:
    """Return a cluster so small that jobs compete for it, with cancellations, early stops and silent agents.

    ``failures``: number of owned or borrowed servers lost, each once. ``exact``: speeds and delays equal the
    planner's assumptions. ``lending``: servers with GPUs of the same or a slower kind are lent and reclaimed
    at any moment.
    """
    rng = Random(seed)
    servers, gpus = rng.choice([(1, 4), (2, 4), (1, 8), (4, 2), (3, 4), (2, 8), (1, 6), (2, 6), (3, 6)])
    if failures:
        servers = max(servers, failures + reserve + 1)
    slot = rng.choice([30.0, 60.0, 240.0])
    jobs = _random_jobs(rng, slot, servers * gpus)
    sharing = _restless_lender(rng, slot) if lending else None
    if sharing is not None:
        jobs = [replace(job, by_kind=_on_both_kinds(rng, job)) for job in jobs]
    happenings = _from_outside(rng, len(jobs), jobs[-1].at + 20 * slot)
    lent = sharing.lending.servers if sharing is not None and sharing.lending is not None else 0
    lost = rng.sample(range(servers + lent), failures)
    for server in lost:
        at = rng.uniform(0, jobs[-1].at + 10 * slot)
        happenings.append(Happening(at, HappeningKind.SERVER_LOST, server))
        if rng.random() < 0.5:
            happenings.append(
                Happening(at + 90.0 + rng.uniform(0, 20 * slot), HappeningKind.SERVER_BACK, server)
            )
    for server in range(servers + lent):
        if server not in lost and rng.random() < 0.3 and not reserve:
            at = rng.uniform(0, jobs[-1].at + 10 * slot)
            happenings.append(Happening(at, HappeningKind.AGENT_SILENT, server))
            happenings.append(Happening(at + rng.uniform(1, 3 * slot), HappeningKind.AGENT_HEARD, server))
    imperfections = Imperfections(checkpoint_seconds=60.0, fence_seconds=30.0)
    if not exact:
        imperfections = Imperfections(0.05, 0.1, rng.uniform(0, 3), 60.0, 30.0)
    pauses = rng.choice([Pauses.MEASURED, Pauses.MEASURED, Pauses.NONE])
    # A lost server costs the time to its fence, the work since a checkpoint, a start, and slots of waiting.
    slack = reserve * (30.0 + 60.0 + 20.0 + 2 * slot)
    return World(
        workload(jobs, f"random-{seed}"),
        SimulationSettings(
            policy=policy,
            pools=(PoolSize("gpu", servers, gpus),),
            slot_seconds=slot,
            pauses=pauses,
            fill=rng.choice([Fill.UNIFORM, Fill.SUFFIX]),
            reserve_servers=reserve,
            reserve_slack_seconds=slack,
            seed=seed,
            imperfections=imperfections,
            check_invariants=True,
            sharing=sharing,
        ),
        tuple(happenings),
    )


def _restless_lender(rng: Random, slot: float) -> SharingSettings:
    """Return lending with a usage that jumps between extremes, from several times a slot to once in a few."""
    usage = np.array([rng.choice([0.05, 0.5, 1.0]) for _ in range(4000)])
    lending = Lending(
        rng.randint(1, 4),
        UsageSeries("restless", "drawn at random", usage),
        rng.choice(list(ReclaimMethod)),
        period_seconds=slot * rng.choice([0.3, 1.0, 2.7]),
        inference_gpu_type=rng.choice(["gpu", "inference gpu"]),
    )
    return SharingSettings(rules=None, lending=lending)


def _on_both_kinds(rng: Random, job: Job) -> Mapping[str, Mapping[int, float]]:
    """Return the job's curve by GPU kind; four in five jobs also have a slower curve on the other kind."""
    curve = dict(job.curve or C4)
    if rng.random() < 0.2:
        return {"gpu": curve}
    return {"gpu": curve, "inference gpu": {gpus: rate / 3 for gpus, rate in curve.items()}}


def _random_jobs(rng: Random, slot: float, gpus: int) -> list[Job]:
    jobs = []
    at = rng.uniform(0, 1000)
    for _ in range(rng.randint(3, 14)):
        if rng.random() < 0.7:
            at += rng.expovariate(1.0) * rng.choice([0.3, 1.0, 4.0]) * slot
        rate, curve, level = rng.uniform(0.5, 2.0), {}, 1
        while level <= 8:
            if level > 1 or rng.random() < 0.85:
                curve[level] = rate
            rate *= rng.uniform(0.9, 2.05)
            level *= 2
        seconds = slot * rng.uniform(0.3, 8.0)
        kind = rng.random()
        deadline = at + seconds * rng.uniform(1.0, 3.0) + 20.0
        service = (
            ServiceClass.BEST_EFFORT
            if kind < 0.25
            else ServiceClass.SOFT
            if kind < 0.33
            else ServiceClass.SLO
        )
        jobs.append(
            Job(
                at=at,
                iterations=rng.choice(list(curve.values())) * seconds,
                deadline_at=float("inf") if service is ServiceClass.BEST_EFFORT else deadline,
                curve=curve,
                service_class=service,
                requested_gpus=rng.choice([1, 1, 2, min(4, gpus)]),
            )
        )
    return jobs


def _from_outside(rng: Random, jobs: int, end: float) -> list[Happening]:
    happenings = []
    for row in range(jobs):
        chance = rng.random()
        if chance < 0.12:
            kind = HappeningKind.JOB_CANCELLED if chance < 0.06 else HappeningKind.JOB_STOPS_EARLY
            happenings.append(Happening(rng.uniform(0, end), kind, row))
    return happenings
