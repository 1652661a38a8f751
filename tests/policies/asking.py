"""Put jobs before a policy and read the allocation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.decision import Decision
from scheduling.core.question.snapshot import JobSnapshot, PlannerSettings, ScalingCurve, Snapshot
from simulation.engine.run import Simulation
from simulation.outcome import RunOutcome
from simulation.policies import policy_named
from tests.core.building import job, sizes, snapshot
from tests.simulation.engine.worlds import Job, settings, workload

FLAT = {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}
"""A job that is as fast on n GPUs as n jobs on one."""


def asking(id: str, requested: int = 1, work: float = 1000.0, **facts: Any) -> JobSnapshot:
    """A job whose user asks for ``requested`` GPUs; it scales linearly and has a far deadline."""
    facts.setdefault("deadline", 1e6)
    return job(id, work, facts.pop("deadline"), facts.pop("curve", FLAT), requested_gpus=requested, **facts)


def measured(points: Mapping[int, float]) -> ScalingCurve:
    """Return all measured points as a curve, also where it falls."""
    rising = curve_from_measurements({gpus: float(gpus) for gpus in points})
    return replace(rising, throughput=rising.throughput * 0.0 + [points[gpus] for gpus in sorted(points)])


def slots(seconds: float) -> PlannerSettings:
    return PlannerSettings(slot_seconds=seconds)


def replanned(policy: str, asked: Snapshot) -> Decision:
    return policy_named(policy).replan(asked)


def given(policy: str, gpus: int | tuple[int, ...], *jobs: JobSnapshot, **facts: Any) -> dict[str, int]:
    """GPUs of every job in the next slot."""
    return sizes(replanned(policy, snapshot(gpus, *jobs, **facts)))


def later(job: JobSnapshot, decision: Decision, seconds: float) -> JobSnapshot:
    """Return the job after it has run under a decision for a while, without pauses."""
    addresses = decision.placements.get(job.id, ())
    rate = 0.0
    if addresses:
        curve = job.measured or job.curve
        rate = float(curve.throughput[curve.levels == len(addresses)][0])
    return replace(
        job,
        newcomer=False,
        total_iterations=job.total_iterations or job.remaining_iterations,
        remaining_iterations=job.remaining_iterations - rate * seconds,
        attained_gpu_seconds=job.attained_gpu_seconds + len(addresses) * seconds,
        gpus_now=len(addresses),
        placement=addresses,
        stored_plan=decision.plans.get(job.id),
        memory=decision.job_memory.get(job.id, ()),
    )


def go_on(policy: str, asked: Snapshot, seconds: float, *more: JobSnapshot) -> tuple[Decision, Snapshot]:
    """Decide, run the jobs for ``seconds``, and decide again with ``more`` newcomers."""
    decision = replanned(policy, asked)
    jobs = tuple(later(job_snapshot, decision, seconds) for job_snapshot in asked.jobs)
    now = asked.now + seconds
    return decision, replace(asked, now=now, next_slot_at=now, jobs=(*jobs, *more), memory=decision.memory)


def simulated(policy: str, *jobs: Job, gpus: int = 2, **more: Any) -> RunOutcome:
    """A run on one server, slots of a second, no pauses."""
    return Simulation(workload(jobs), settings(policy, gpus=gpus, **more)).run()
