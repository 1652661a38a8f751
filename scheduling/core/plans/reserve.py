"""Failure reserve: servers that back no promise (ElasticFlow 4.4)."""

from __future__ import annotations

from collections.abc import Sequence

#: Slots that pass until a lost server's jobs are placed again: the one in which it is given up, and the next.
SLOTS_TO_PLACE_AGAIN = 2


def seconds_to_place_again(slot_seconds: float) -> float:
    """At most how long a lost server's jobs wait for other GPUs once it is given up."""
    return SLOTS_TO_PLACE_AGAIN * slot_seconds


def reserved_gpus(
    server_gpus: Sequence[int], reserve_servers: int, *, standby_gpus: Sequence[int] = ()
) -> int:
    """GPUs in use that back no promise, so that the promises fit whichever ``reserve_servers`` are lost.

    That is what the largest servers have, less what takes their places.

    Args:
        server_gpus: GPUs of each usable server.
        standby_gpus: GPUs of each server that stands by; the largest as many as are lost count.
    """
    if reserve_servers <= 0:
        return 0
    lost = sum(sorted(server_gpus, reverse=True)[:reserve_servers])
    return max(0, lost - sum(sorted(standby_gpus, reverse=True)[:reserve_servers]))
