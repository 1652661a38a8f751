"""The memory that experts may take while Lina's schedule gives them more hosts (Lina 4.4, step T4)."""

from __future__ import annotations

from math import inf

from cluster.models import Cluster
from moe.planning.memory import bytes_for_packing
from scheduling.curve_keys import keys_without_plan
from scheduling.models import CurveLevel, GradientProfile, ScalingCurve
from scheduling.services.memory.host_memory import smallest_share
from scheduling.services.memory.mixture_models import model_sizes


def bytes_of_experts(
    profile: GradientProfile, level: CurveLevel | None, device_bytes: int | None, step_bytes: int
) -> int | None:
    """Return the most bytes that the experts of a worker may take, with gradients and optimizer state; None
    if they have to stay where they are, or the amount of memory is unknown.

    Args:
        level: as it was measured without a plan, when each expert had one host; None if it was not.
        device_bytes: of the device, that the level leaves; None if not known.
        step_bytes: what is left of the host counts in multiples of this.
    """
    if level is None or device_bytes is None:
        return None
    keys = keys_without_plan(profile.key)
    mixture = (
        ScalingCurve.objects.filter(key__in=keys, mixture__isnull=False)
        .values_list("mixture", flat=True)
        .first()
    )
    if mixture is None:
        return None
    sizes = model_sizes(mixture)
    left = device_bytes
    if sizes.on_host:
        left = min(left, _host_bytes(profile.gpu_kind, level, device_bytes, step_bytes))
    return bytes_for_packing(sizes, profile.gpus, left)


def _host_bytes(kind: str, level: CurveLevel, most_bytes: int, step_bytes: int) -> int:
    """Return what a level leaves of the host memory that every worker is sure of; at most `most_bytes`."""
    share = min((smallest_share(cluster, kind) for cluster in Cluster.objects.all()), default=inf)
    left = int(min(float(most_bytes), max(0.0, share - level.host_memory_bytes)))
    return left - left % step_bytes
