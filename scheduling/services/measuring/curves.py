"""Refines curves by what running jobs show: throughput, pauses and host memory (ElasticFlow section 5,
online profiling)."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from statistics import median

from django.db import transaction
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import GenerationState, JobState, Purpose
from scheduling.models import CurveLevel, Generation, JobMetric
from scheduling.services.memory.host_memory import growth_of_running_jobs, note_growth
from scheduling.services.rows.records import lock_cluster, planning_fact_changed
from scheduling.services.rows.wakeups import wake

#: Relative change of throughput above which plans are made anew (drift).
DRIFT = 0.05
#: Weight of the latest measurements.
WEIGHT = 0.5
MINIMUM_SAMPLES = 8
WINDOW = timedelta(seconds=60)


def refine_curves() -> int:
    """Move every measured level on which jobs run towards their measurements. Return the number of changed
    levels."""
    moved = 0
    for cluster in Cluster.objects.all():
        changes = _throughput_changes(cluster)
        pauses = _pause_changes(cluster)
        grown = growth_of_running_jobs(cluster, timezone.now() - WINDOW)
        if not changes and not pauses and not grown:
            continue
        with transaction.atomic():
            lock_cluster(cluster.pk)
            now = timezone.now()
            for level, speed in changes.items():
                CurveLevel.objects.filter(pk=level).update(
                    iterations_per_second=speed, source="live", measured_at=now
                )
            for level, seconds in pauses.items():
                CurveLevel.objects.filter(pk=level).update(pause_seconds=seconds)
            if note_growth(grown) or changes or pauses:
                planning_fact_changed(cluster)
                wake("plan", trigger="scaling curves were refined")
        moved += len(changes) + len(pauses) + len(grown)
    return moved


def _throughput_changes(cluster: Cluster) -> dict[int, float]:
    """Return the new throughput of each drifted level, from the median of the last minute of its jobs'
    present generations."""
    since = timezone.now() - WINDOW
    seen: dict[tuple[int, int], list[float]] = defaultdict(list)
    live = Generation.objects.filter(
        job__cluster=cluster,
        job__state=JobState.RUNNING,
        state=GenerationState.LIVE,
        purpose=Purpose.TRAINING,
    )
    for generation in live:
        measured = JobMetric.objects.filter(
            job_id=generation.job_id,
            generation=generation.number,
            measured_at__gt=since,
            iterations_per_second__gt=0,
        ).values_list("iterations_per_second", flat=True)
        if generation.curve_id is not None:
            seen[generation.curve_id, generation.world_size].extend(measured)
    changes = {}
    for level in CurveLevel.objects.filter(curve_id__in={curve for curve, _ in seen}):
        rates = seen.get((level.curve_id, level.gpus), [])
        if len(rates) < MINIMUM_SAMPLES:
            continue
        blended = (1 - WEIGHT) * level.iterations_per_second + WEIGHT * median(rates)
        if abs(blended - level.iterations_per_second) > DRIFT * level.iterations_per_second:
            changes[level.pk] = blended
    return changes


def _pause_changes(cluster: Cluster) -> dict[int, float]:
    """Return the new pause of each level: from when its GPUs were held to the first iteration, as measured
    recently."""
    since = timezone.now() - timedelta(minutes=10)
    seen: dict[tuple[int, int], list[float]] = defaultdict(list)
    generations = Generation.objects.filter(
        job__cluster=cluster, purpose=Purpose.TRAINING, live_at__gt=since, held_at__isnull=False
    ).values_list("curve_id", "world_size", "held_at", "live_at")
    for curve_id, gpus, held_at, live_at in generations:
        if held_at is not None and live_at is not None:
            seen[curve_id, gpus].append((live_at - held_at).total_seconds())
    changes = {}
    for level in CurveLevel.objects.filter(curve_id__in={curve for curve, _ in seen if curve}):
        seconds = seen.get((level.curve_id, level.gpus), [])
        if not seconds:
            continue
        blended = (1 - WEIGHT) * level.pause_seconds + WEIGHT * max(median(seconds), 0.5)
        if abs(blended - level.pause_seconds) > max(0.25, 0.2 * level.pause_seconds):
            changes[level.pk] = blended
    return changes
