"""Choice of the rank that reads each shard: one on a holder's server, to avoid network traffic."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def choose_readers(holders: Sequence[Collection[int]], servers: Sequence[int]) -> list[int]:
    """Return the rank that reads each shard.

    Args:
        holders: the servers that have each shard. servers: the server of each reading rank.

    A shard is read by the least loaded rank on a holder's server, or without such a rank by the least loaded
    rank of all. Shards with a local rank are assigned first, to balance the rest.
    """
    given = [0] * len(servers)
    beside = [[rank for rank, server in enumerate(servers) if server in have] for have in holders]
    readers = [0] * len(holders)
    for number in sorted(range(len(holders)), key=lambda one: not beside[one]):
        reader = min(beside[number] or range(len(servers)), key=lambda rank: (given[rank], rank))
        readers[number] = reader
        given[reader] += 1
    return readers
