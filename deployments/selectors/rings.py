"""Layers of replicas that stream from host memory, as their workers reported them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deployments.models import Replica
from moe.moesys.serving_ring import USABLE_SHARE, RingTimes, ServingRing, judge_ring

#: CPU slots: their memory is the host's, so streaming from there gains nothing.
HOST_KIND = "cpu"


@dataclass(frozen=True, slots=True)
class ReplicaRing:
    """A replica with streaming layers.

    Attributes:
        resident, streamed: layers that stay on the device, and those that do not.
        device_bytes: memory of the weights on the device.
        model_bytes: the same if all layers were there.
        load_seconds: copy of one layer. compute_seconds: computation of one; null before the first call.
        predicted_seconds: of a call of `predict` in steady state; the least that it can be before the first
            one. call_seconds: as measured, and stall_seconds: the part of it that waited for copies; null
            before the first call.
    """

    resident: int
    streamed: int
    device_bytes: int
    model_bytes: int
    load_seconds: float
    compute_seconds: float | None
    predicted_seconds: float
    call_seconds: float | None
    stall_seconds: float | None


def ring_of(replica: Replica) -> ReplicaRing | None:
    """Return a replica's streaming layers; None if it has the whole model on its device, or no report."""
    if not replica.ring:
        return None
    reported, plan, times = replica.ring, ring_plan(replica.ring), ring_times(replica.ring)
    calls = reported["calls"]
    stalled, computed = reported["stall_seconds"], reported["compute_seconds"]
    return ReplicaRing(
        resident=len(plan.pinned),
        streamed=plan.layers - len(plan.pinned),
        device_bytes=plan.device_bytes,
        model_bytes=plan.with_sections(plan.layers).device_bytes,
        load_seconds=times.load_seconds,
        compute_seconds=times.compute_seconds if calls else None,
        predicted_seconds=judge_ring(plan, times, None).seconds,
        call_seconds=(stalled + computed) / calls if calls else None,
        stall_seconds=stalled / calls if calls else None,
    )


def ring_plan(reported: Mapping[str, Any]) -> ServingRing:
    """Return the plan of a report (`RingCounts`)."""
    names = ("layers", "sections", "section_bytes", "other_bytes")
    return ServingRing(*(reported[name] for name in names))


def ring_times(reported: Mapping[str, Any]) -> RingTimes:
    """Return the times of a report (`RingCounts`)."""
    load_seconds = reported["copy_seconds"] / reported["loads"]
    if not reported["calls"] or not reported["entered"]:
        return RingTimes(load_seconds)
    return RingTimes(
        load_seconds,
        reported["compute_seconds"] / reported["entered"],
        reported["entered"] / reported["calls"] / reported["layers"],
    )


def usable_device_bytes(replica: Replica) -> int | None:
    """Return the device memory that a replica's weights may take; None if it is unknown, or if the replica
    belongs to a group, which swaps experts."""
    if replica.group:
        return None
    limits = [replica.deployment.device_memory_bytes]
    if replica.gpu.memory_bytes and replica.gpu.kind != HOST_KIND:
        limits.append(int(USABLE_SHARE * replica.gpu.memory_bytes))
    return min((limit for limit in limits if limit is not None), default=None)
