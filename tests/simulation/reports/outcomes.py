"""Outcomes for tests, built by hand or long and random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scheduling.core.question.snapshot import ServiceClass
from simulation.outcome import AllocationHistory, ClusterHistory, JobEnd, JobOutcomes, RunOutcome

NEVER = math.nan


@dataclass(frozen=True)
class Job:
    """A job of an outcome; events that are not given did not happen."""

    name: str
    service_class: ServiceClass = ServiceClass.SLO
    end: JobEnd = JobEnd.COMPLETED
    promised: bool = True
    submitted: float = 0.0
    deadline: float = math.inf
    decided: float = NEVER
    started: float = NEVER
    completed: float = NEVER
    void: str = ""
    preemptions: int = 0


def finished(
    name: str, submitted: float, started: float, completed: float, deadline: float, **other: Any
) -> Job:
    """Return a job with a deadline that ran to its end."""
    return Job(
        name, submitted=submitted, decided=submitted, started=started, completed=completed, deadline=deadline,
        **other
    )  # fmt: skip


def declined(name: str, submitted: float, deadline: float, **other: Any) -> Job:
    """Return a job that was refused on arrival."""
    return Job(
        name, end=JobEnd.DECLINED, promised=False, submitted=submitted, decided=submitted, deadline=deadline,
        **other
    )  # fmt: skip


def best_effort(name: str, submitted: float, started: float, completed: float) -> Job:
    """Return a job without a deadline that ran to its end."""
    return Job(
        name, ServiceClass.BEST_EFFORT, promised=False, submitted=submitted, decided=submitted,
        started=started, completed=completed,
    )  # fmt: skip


def job_columns(jobs: Sequence[Job]) -> JobOutcomes:
    """Return the jobs as columns."""

    def floats(name: str) -> np.ndarray:
        return np.array([getattr(job, name) for job in jobs], dtype=np.float64)

    nothing = np.zeros(len(jobs), dtype=np.int64)
    return JobOutcomes(
        job_id=tuple(job.name for job in jobs),
        service_class=tuple(job.service_class for job in jobs),
        end=tuple(job.end for job in jobs),
        promised=tuple(job.promised for job in jobs),
        reason_code=tuple("no_capacity" if job.end == JobEnd.DECLINED else "" for job in jobs),
        void_reason=tuple(job.void for job in jobs),
        pool=tuple("A100" for _ in jobs),
        submitted_at=floats("submitted"),
        deadline_at=floats("deadline"),
        decided_at=floats("decided"),
        started_at=floats("started"),
        completed_at=floats("completed"),
        planned_finish_at=floats("completed"),
        gpu_seconds=np.zeros(len(jobs)),
        pause_seconds=np.zeros(len(jobs)),
        waiting_seconds=np.zeros(len(jobs)),
        rescales=nothing,
        migrations=nothing,
        preemptions=np.array([job.preemptions for job in jobs], dtype=np.int64),
    )


def cluster_rows(*rows: tuple[float, int, int, int, int, int, float, float]) -> ClusterHistory:
    """Return the history of rows (time, gpus, promised, unpromised, running, waiting, efficiency, decision
    seconds)."""
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * 8
    time, efficiency, decision_seconds = (np.array(columns[place], dtype=np.float64) for place in (0, 6, 7))
    gpus, promised, unpromised, running, waiting = (
        np.array(column, dtype=np.int64) for column in columns[1:6]
    )
    return ClusterHistory(time, gpus, promised, unpromised, running, waiting, efficiency, decision_seconds)


def allocation_rows(*rows: tuple[float, int, int]) -> AllocationHistory:
    """Return the history of rows (time, job, gpus)."""
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return AllocationHistory(table[:, 0], table[:, 1].astype(np.int64), table[:, 2].astype(np.int64))


def outcome(
    jobs: Sequence[Job] = (), cluster: ClusterHistory | None = None, end_at: float = 100.0, **other: Any
) -> RunOutcome:
    """Return an outcome of these jobs, with defaults for all else."""
    settings = {"policy": "punctual", "trace": "by-hand", "seed": 0, "servers": 1, "gpus_per_server": 4,
                "slot_seconds": 60.0, "pauses": "measured"} | other.pop("settings", {})  # fmt: skip
    defaults: dict[str, Any] = {
        "allocations": allocation_rows(),
        "counts": {"rescales": 3, "migrations": 1, "preemptions": 0, "decisions": 2, "failures": 0},
        "interrupted": False,
        "wall_seconds": 0.5,
        "setup_seconds": 1.25,
        "peak_memory_bytes": 200 * 1024**2,
    }
    return RunOutcome(
        settings=settings,
        jobs=job_columns(jobs),
        cluster=cluster_rows() if cluster is None else cluster,
        end_at=end_at,
        **(defaults | other),
    )


def random_outcome(
    jobs: int, instants: int, seed: int = 0, gpus: int = 128, span_seconds: float = 400_000.0, **other: Any
) -> RunOutcome:
    """Return a plausible run: some jobs are declined, late, void, without a deadline or unfinished."""
    draw = np.random.default_rng(seed)
    submitted = np.sort(draw.uniform(0, span_seconds, jobs))
    rows = []
    for number, at in enumerate(submitted.tolist()):
        wait, length = draw.exponential(600.0), draw.exponential(9_000.0)
        kind = draw.choice(["slo", "slo", "slo", "soft", "best_effort", "declined", "void", "open"])
        deadline = at + (wait + length) * draw.uniform(0.99, 1.8)
        name = f"job-{number}"
        if kind == "best_effort":
            rows.append(best_effort(name, at, at + wait, at + wait + length))
        elif kind == "declined":
            rows.append(declined(name, at, deadline))
        elif kind == "open":
            rows.append(Job(name, end=JobEnd.UNFINISHED, submitted=at, decided=at, deadline=span_seconds * 2))
        else:
            service_class = ServiceClass.SOFT if kind == "soft" else ServiceClass.SLO
            void = "function_failed" if kind == "void" else ""
            rows.append(
                finished(name, at, at + wait, at + wait + length, deadline, service_class=service_class,
                void=void)
            )  # fmt: skip
    end_at = max([span_seconds, *(job.completed for job in rows if not math.isnan(job.completed))])
    time = np.sort(draw.uniform(0, span_seconds, instants))
    waving = 0.5 + 0.4 * np.sin(np.linspace(0, 20, instants))
    promised = np.round(gpus * waving * draw.uniform(0.6, 1.0, instants)).astype(np.int64)
    unpromised = np.round((gpus - promised) * draw.uniform(0, 1, instants)).astype(np.int64)
    running = np.maximum(1, promised // 4)
    waiting = draw.poisson(4 * waving)
    cluster = ClusterHistory(
        time=time,
        gpus=np.full(instants, gpus, dtype=np.int64),
        gpus_promised=promised,
        gpus_unpromised=unpromised,
        jobs_running=running,
        jobs_waiting=waiting,
        cluster_efficiency=(promised + unpromised) / gpus * draw.uniform(0.7, 0.95, instants),
        decision_seconds=draw.lognormal(-8.0, 0.6, instants) * (1 + (running + waiting) / 20),
    )
    held = [
        (job.started, row, int(2 ** draw.integers(0, 5))) for row, job in enumerate(rows) if job.started > 0
    ]
    freed = [(job.completed, row, 0) for row, job in enumerate(rows) if job.started > 0]
    return outcome(rows, cluster, end_at, allocations=allocation_rows(*sorted(held + freed)), **other)
