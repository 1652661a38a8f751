"""Stores progress, metrics and logs as they are reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from punctual.protocol.reports import CheckedItem, RefusedItem
from scheduling.choices import GenerationState, Purpose
from scheduling.models import Generation, Job, JobMetric, LogChunk
from scheduling.selectors.agents.own_work import OwnWork
from scheduling.services.rows.wakeups import hint

#: Bytes of log kept for one job; older chunks make room.
MAXIMUM_LOG_BYTES = 8 * 1024 * 1024


@transaction.atomic
def store_metrics(server_id: int, items: Sequence[CheckedItem], now: datetime) -> list[RefusedItem]:
    """Store the metrics of live generations whose rank 0 runs on this server. Return the refused items.

    Metrics of a retired generation are dropped silently: they were under way when it ended.
    """
    own = OwnWork(server_id, (item.value["job"] for item in items))
    live = _living_generations({item.value["job"] for item in items})
    refused = []
    rows = []
    latest: dict[str, CheckedItem] = {}
    for item in items:
        entry = item.value
        problem = own.problem(entry, rank=0)
        found = live.get((entry["job"], entry["generation"]))
        if problem is None and found is not None and entry["iteration"] > found.max_iterations:
            problem = f"iteration: {entry['iteration']} of a job that has {found.max_iterations}"
        if problem is not None:
            refused.append(RefusedItem("metrics", item.index, problem, entry["job"]))
            continue
        if found is None:
            continue
        latest[entry["job"]] = max(
            latest.get(entry["job"], item), item, key=lambda candidate: int(candidate.value["iteration"])
        )
        rows.append(
            JobMetric(
                job_id=entry["job"],
                generation=entry["generation"],
                iteration=entry["iteration"],
                values=entry["values"],
                iterations_per_second=entry["iterations_per_second"],
                train_seconds=entry["train_seconds"],
                host_memory_bytes=entry["host_memory_bytes"],
                gpus=found.world_size,
                measured_at=now - timedelta(seconds=entry["age_seconds"]),
            )
        )
    JobMetric.objects.bulk_create(rows, ignore_conflicts=True)
    for job_id, item in latest.items():
        entry = item.value
        Job.objects.filter(pk=job_id, iterations_done__lte=entry["iteration"]).update(
            iterations_done=entry["iteration"],
            iterations_per_second=entry["iterations_per_second"],
            iterations_reported_at=now - timedelta(seconds=entry["age_seconds"]),
        )
        hint(f"job:{job_id}", kind="metrics")
    return refused


@dataclass(frozen=True)
class _Living:
    world_size: int
    #: Iteration after which the job ends.
    max_iterations: int


def _living_generations(jobs: set[str]) -> dict[tuple[str, int], _Living]:
    """Return each job's live training generation."""
    found = Generation.objects.filter(
        job_id__in=jobs, purpose=Purpose.TRAINING, state=GenerationState.LIVE
    ).values_list("job_id", "number", "world_size", "job__max_iterations")
    return {(job, number): _Living(size, iterations) for job, number, size, iterations in found}


@transaction.atomic
def store_logs(server_id: int, items: Sequence[CheckedItem]) -> list[RefusedItem]:
    """Store log pieces of this server's workers; ignore repeated pieces. Return the refused items."""
    own = OwnWork(server_id, (item.value["job"] for item in items))
    problems = [(item, own.problem(item.value)) for item in items]
    taken = [item.value for item, problem in problems if problem is None]
    LogChunk.objects.bulk_create([LogChunk(**_chunk(entry)) for entry in taken], ignore_conflicts=True)
    for job_id in {entry["job"] for entry in taken}:
        hint(f"job:{job_id}", kind="logs")
    return [
        RefusedItem("logs", item.index, problem, item.value["job"])
        for item, problem in problems
        if problem is not None
    ]


def _chunk(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "job_id": entry["job"],
        **{name: entry[name] for name in ("generation", "rank", "offset", "text")},
    }
