"""Progress, metrics and logs as they stream in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from scheduling.choices import GenerationState, Purpose
from scheduling.models import Assignment, Generation, Job, JobMetric, LogChunk
from scheduling.services.wakeups import hint

#: Bytes of log kept for one job; older chunks make room.
MAXIMUM_LOG_BYTES = 8 * 1024 * 1024


@transaction.atomic
def store_metrics(metrics: list[Mapping[str, Any]], now: datetime) -> None:
    """Store what living generations measured; a retired generation's numbers are refused."""
    latest: dict[tuple[str, int], Mapping[str, Any]] = {}
    rows = []
    live = _generations([(entry["job"], entry["generation"]) for entry in metrics])
    for entry in metrics:
        key = (entry["job"], entry["generation"])
        if key not in live:
            continue
        latest[key] = max(latest.get(key, entry), entry, key=lambda item: int(item["iteration"]))
        rows.append(
            JobMetric(
                job_id=entry["job"],
                generation=entry["generation"],
                iteration=entry["iteration"],
                values=_finite(entry.get("values", {})),
                iterations_per_second=entry.get("iterations_per_second", 0.0),
                train_seconds=entry.get("train_seconds", 0.0),
                gpus=live[key],
                measured_at=now - timedelta(seconds=float(entry.get("age_seconds", 0.0))),
            )
        )
    JobMetric.objects.bulk_create(rows, ignore_conflicts=True)
    for (job_id, _), entry in latest.items():
        Job.objects.filter(pk=job_id, iterations_done__lte=entry["iteration"]).update(
            iterations_done=entry["iteration"],
            iterations_per_second=entry.get("iterations_per_second", 0.0),
            iterations_reported_at=now - timedelta(seconds=float(entry.get("age_seconds", 0.0))),
        )
        hint(f"job:{job_id}", kind="metrics")


def _generations(keys: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """World size of those that are the living training generation of their job."""
    if not keys:
        return {}
    found = Generation.objects.filter(
        job_id__in={job for job, _ in keys}, purpose=Purpose.TRAINING, state=GenerationState.LIVE
    ).values_list("job_id", "number", "world_size")
    wanted = set(keys)
    return {(job, number): size for job, number, size in found if (job, number) in wanted}


def _finite(values: Mapping[str, Any]) -> dict[str, float | None]:
    """JSON has no infinity: a diverged loss is shown as missing."""
    return {
        name: value if value is not None and math.isfinite(value) else None for name, value in values.items()
    }


@transaction.atomic
def store_logs(server_id: int, logs: list[Mapping[str, Any]]) -> None:
    """Store log pieces of workers that this server was given; a repeated piece changes nothing."""
    if not logs:
        return
    own = set(
        Assignment.objects.filter(
            gpu__server_id=server_id, job_id__in={entry["job"] for entry in logs}
        ).values_list("job_id", "generation__number", "rank")
    )
    LogChunk.objects.bulk_create(
        [
            LogChunk(
                job_id=entry["job"],
                generation=entry["generation"],
                rank=entry["rank"],
                offset=entry["offset"],
                # PostgreSQL text cannot hold NUL.
                text=entry["text"].replace("\x00", "\N{REPLACEMENT CHARACTER}"),
            )
            for entry in logs
            if (entry["job"], entry["generation"], entry["rank"]) in own
        ],
        ignore_conflicts=True,
    )
    for job_id in {entry["job"] for entry in logs}:
        hint(f"job:{job_id}", kind="logs")
