"""Sources of the state of a generation's ranks, from its start order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduling.choices import StateSource

_COME_FROM = {
    "memory": StateSource.PEER_MEMORY,
    "handover": StateSource.PEER_MEMORY,
    "checkpoint": StateSource.DURABLE,
}


def sources_of_shards(start: Mapping[str, Any] | None, servers: Sequence[int]) -> list[StateSource]:
    """Return the source of each shard; empty for a start from nothing. Arguments as in `sources_of`."""
    order: Mapping[str, Any] = start or {}
    come_from = _COME_FROM.get(order.get("from", ""), StateSource.NONE)
    if come_from == StateSource.NONE:
        return []
    found: list[StateSource] = []
    for shard in order["shards"]:
        nearest: Mapping[str, Any] = next(iter(shard["holders"]), {})
        own = come_from == StateSource.PEER_MEMORY and servers[shard["reader"]] == nearest.get("server")
        found.append(StateSource.OWN_MEMORY if own else come_from)
    return found


def sources_of(start: Mapping[str, Any] | None, servers: Sequence[int]) -> list[dict[str, Any]]:
    """Return each rank's server, the source of its state, and the servers that hold what it reads.

    Args:
        start: the start order; its shards name their holders, nearest first.
        servers: the server of each rank.

    A rank that reads no shard itself receives what the others have read.
    """
    read: dict[int, list[Mapping[str, Any]]] = {rank: [] for rank in range(len(servers))}
    for shard in (start or {}).get("shards", ()):
        if shard["holders"] and shard["reader"] in read:
            read[shard["reader"]].append(shard["holders"][0])
    of_all = _COME_FROM.get((start or {}).get("from", ""), StateSource.NONE)
    found = []
    for rank, server in enumerate(servers):
        holders = sorted({one["server"] for one in read[rank] if one["tier"] == "memory"})
        source = of_all
        if of_all == StateSource.PEER_MEMORY and holders == [server]:
            source = StateSource.OWN_MEMORY
        found.append({"rank": rank, "server": server, "source": source.value, "holders": holders})
    return found
