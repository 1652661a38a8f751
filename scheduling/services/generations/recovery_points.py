"""Orders that tell a generation's ranks where to read its state: shards, their holders and their readers.

A restart, a migration, a resumption and a hand-over use the same order with different holders
(docs/protocols.md 2.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Sum
from django.utils import timezone

from recovery.points.readers import choose_readers
from scheduling.models import Checkpoint, Generation, Job, StateShard


def start_from_checkpoint(point: Checkpoint, readers: int) -> dict[str, Any]:
    """Return the order to start `readers` ranks from a complete recovery point."""
    shards = [
        {
            "id": shard.number,
            "reader": shard.number % readers,
            "bytes": shard.size_bytes,
            "sha256": shard.sha256 or None,
            "holders": [{"tier": "store", "uri": shard.uri}],
        }
        for shard in point.shards.order_by("number")
    ]
    return {
        "from": "checkpoint",
        "generation": point.generation,
        "iteration": point.iteration,
        "world_size": point.world_size,
        "runtime_plan": point.runtime_plan_digest or None,
        "shards": shards,
    }


def start_from_predecessor(predecessor: Generation, servers: Sequence[int]) -> dict[str, Any]:
    """Return the order to take the state from the memory of a generation's ranks.

    Args:
        servers: the server of each rank of the new generation. A rank on the server of a former rank reads
            that rank's shard.
    """
    members = list(
        predecessor.assignments.select_related("gpu__server").order_by("rank")[: predecessor.world_size]
    )
    readers = choose_readers([{member.gpu.server_id} for member in members], servers)
    shards = [
        {
            "id": member.rank,
            "reader": readers[place],
            "holders": [
                {
                    "tier": "memory",
                    "server": member.gpu.server_id,
                    "address": member.gpu.server.address,
                    "port": member.handover_port,
                }
            ],
        }
        for place, member in enumerate(members)
    ]
    return {
        "from": "handover",
        "generation": predecessor.number,
        "world_size": predecessor.world_size,
        "runtime_plan": predecessor.runtime_plan.get("digest"),
        "shards": shards,
    }


def take_shard(
    job: Job,
    generation: Generation,
    *,
    rank: int,
    iteration: int,
    folder: str,
    size_bytes: int,
    sha256: str,
    reason: str,
    store_seconds: float,
) -> Checkpoint | None:
    """Store that a shard is durable. Return its recovery point once that is complete.

    The point is complete with as many shards as the generation has ranks, whatever is reported.
    """
    point, _ = Checkpoint.objects.get_or_create(
        job=job,
        generation=generation.number,
        iteration=iteration,
        defaults={
            "uri": folder,
            "reason": reason,
            "world_size": generation.world_size,
            "runtime_plan_digest": generation.runtime_plan.get("digest", ""),
        },
    )
    StateShard.objects.update_or_create(
        checkpoint=point,
        number=rank,
        defaults={"uri": f"{folder}/{rank}.pt", "size_bytes": size_bytes, "sha256": sha256},
    )
    point.size_bytes = point.shards.aggregate(total=Sum("size_bytes"))["total"]
    point.reason = reason
    point.store_seconds = max(point.store_seconds, store_seconds)
    point.deleted_at = None
    if point.complete_at is None and point.shards.count() == point.world_size:
        point.complete_at = point.stored_at = timezone.now()
    point.save(
        update_fields=["size_bytes", "reason", "store_seconds", "complete_at", "stored_at", "deleted_at"]
    )
    return point if point.complete_at is not None else None
