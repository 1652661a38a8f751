"""Servers with GPUs that no job holds."""

from __future__ import annotations

from django.db.models import Count

from cluster.models import Gpu
from moe.moesys.placement_score import FreeServer
from scheduling.choices import AssignmentState


def find_free_servers(gpu_kind: str | None = None) -> list[FreeServer]:
    """Return servers with GPUs that training may use and that no job holds, those with the most first.

    Args:
        gpu_kind: kind of the GPUs; None for any.
    """
    occupied = (AssignmentState.HELD, AssignmentState.CLEARING)
    free = Gpu.objects.for_training().usable().exclude(assignments__state__in=occupied)
    if gpu_kind is not None:
        free = free.filter(kind=gpu_kind)
    rows = free.order_by().values_list("server__name", "server__rack").annotate(gpus=Count("pk"))
    servers = [FreeServer(name, gpus, rack) for name, rack, gpus in rows]
    return sorted(servers, key=lambda server: (-server.free_gpus, server.id))
