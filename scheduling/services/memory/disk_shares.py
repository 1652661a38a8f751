"""Disk of workers that keep states of experts in files (decision 0033).

Each GPU of a server has an equal share of the server's disk, which the agent computes and its workers cannot
exceed. A level whose workers need more than the smallest share of the servers is not a level.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from django.db.models import Min

from cluster.models import Cluster, Server
from moe.planning.memory import Memory
from scheduling.choices import GenerationState, Purpose
from scheduling.models import CurveLevel, Generation, ScalingCurve
from scheduling.services.memory.mixture_models import model_sizes


def smallest_disk(cluster: Cluster, kind: str) -> float:
    """Return the bytes that a worker may fill on every server of the cluster's own with GPUs of a kind;
    infinity if no server reports them."""
    own = Server.objects.filter(cluster=cluster, inference_cluster__isnull=True, gpus__kind=kind)
    least = own.known().filter(worker_disk_bytes__gt=0).aggregate(least=Min("worker_disk_bytes"))["least"]
    return inf if least is None else float(least)


def levels_with_room(
    levels: Iterable[CurveLevel], curve: ScalingCurve | None, cluster: Cluster
) -> list[CurveLevel]:
    """Return the measured levels of a curve without those on which a worker needs more than its share of
    disk. A level on which a job trains has its room already, and stays."""
    levels = list(levels)
    if curve is None or curve.mixture is None:
        return levels
    sizes = model_sizes(curve.mixture)
    if not sizes.has_tiers:
        return levels
    share = smallest_disk(cluster, curve.gpu_kind)
    fitting = {level.gpus for level in levels if sizes.needed_bytes(Memory.DISK, level.gpus) <= share}
    if len(fitting) < len(levels):
        training = Generation.objects.filter(
            curve=curve, purpose=Purpose.TRAINING, state=GenerationState.LIVE
        )
        fitting |= set(training.values_list("world_size", flat=True))
    return [level for level in levels if level.gpus in fitting]
