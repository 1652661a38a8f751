"""Build jobs, clusters and snapshots, and read plans slot by slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.decision import Decision
from scheduling.core.question.snapshot import (
    NO_DEADLINE,
    Fill,
    JobSnapshot,
    PlannerSettings,
    ScalingCurve,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
    StoredPlan,
)

C3 = {1: 1.0, 2: 1.5}
C4 = {1: 1.0, 2: 1.5, 4: 2.0}
C5 = {1: 1.0, 2: 1.5, 4: 2.2}
UNIT_SLOTS = PlannerSettings(slot_seconds=1.0)


def curve(measured: Mapping[int, float], pause: float = 0.0) -> ScalingCurve:
    """A curve with the same pause on every level."""
    return curve_from_measurements(measured, pause_seconds=lambda gpus: pause)


def job(
    id: str,
    work: float,
    deadline: float = NO_DEADLINE,
    measured: Mapping[int, float] = C4,
    *,
    pause: float = 0.0,
    **facts: Any,
) -> JobSnapshot:
    """Return a newcomer; it is best effort when it has no deadline."""
    facts.setdefault("newcomer", True)
    facts.setdefault("submitted_at", 0.0)
    service = ServiceClass.BEST_EFFORT if deadline == NO_DEADLINE else ServiceClass.SLO
    facts.setdefault("service_class", service)
    return JobSnapshot(
        id=id,
        deadline_at=deadline,
        remaining_iterations=work,
        curve=curve(measured, pause),
        **facts,
    )


def servers(*gpus: int) -> tuple[ServerSnapshot, ...]:
    return tuple(ServerSnapshot(f"server{number}", count) for number, count in enumerate(gpus))


def snapshot(
    gpus: int | tuple[int, ...],
    *jobs: JobSnapshot,
    now: float = 0.0,
    next_slot_at: float | None = None,
    settings: PlannerSettings = UNIT_SLOTS,
    **facts: Any,
) -> Snapshot:
    sizes = (gpus,) if isinstance(gpus, int) else gpus
    return Snapshot(
        now=now,
        next_slot_at=now if next_slot_at is None else next_slot_at,
        servers=servers(*sizes),
        jobs=jobs,
        settings=settings,
        **facts,
    )


def suffix(settings: PlannerSettings = UNIT_SLOTS) -> PlannerSettings:
    return replace(settings, fill=Fill.SUFFIX)


def per_slot(plan: StoredPlan, slots: int, *, slot: float = 1.0, start: float = 0.0) -> list[int]:
    """GPUs of a plan in each of the first ``slots`` slots."""
    held = []
    for number in range(slots):
        middle = start + (number + 0.5) * slot
        inside = (plan.start <= middle) & (middle < plan.end)
        held.append(int(plan.gpus[inside].sum()))
    return held


def gpu_time(plan: StoredPlan) -> float:
    """GPU time held until the exact finish."""
    length = np.minimum(plan.end, plan.finish_at) - plan.start
    return float((plan.gpus * np.maximum(0.0, length)).sum())


def verdicts(decision: Decision) -> dict[str, bool]:
    return {verdict.job_id: verdict.admitted for verdict in decision.verdicts}


def sizes(decision: Decision) -> dict[str, int]:
    """GPUs of every job in the next slot."""
    return {job_id: len(addresses) for job_id, addresses in decision.placements.items()}


def after(
    job: JobSnapshot, decision: Decision, *, remaining: float, promised: bool | None = None
) -> JobSnapshot:
    """Return the job after it has run under a decision for a while."""
    verdict = next((verdict for verdict in decision.verdicts if verdict.job_id == job.id), None)
    holds = promised if promised is not None else (verdict.promised if verdict else job.promised)
    addresses = decision.placements.get(job.id, job.placement)
    return replace(
        job,
        newcomer=False,
        promised=holds,
        remaining_iterations=remaining,
        gpus_now=len(addresses),
        placement=addresses,
        stored_plan=decision.plans.get(job.id, job.stored_plan),
    )
