"""Which rank reads each shard of a state: one beside a holder, so that its bytes cross no network."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def choose_readers(holders: Sequence[Collection[int]], servers: Sequence[int]) -> list[int]:
    """The rank that reads each shard.

    Args:
        holders: the servers that have each shard. servers: those of the ranks that are to read.

    A shard that some rank has on its own server is read by such a rank, the others by any: by one that reads
    least so far. Shards with a rank beside them come first, so that the rest is spread over those who read
    little.
    """
    given = [0] * len(servers)
    beside = [[rank for rank, server in enumerate(servers) if server in have] for have in holders]
    readers = [0] * len(holders)
    for number in sorted(range(len(holders)), key=lambda one: not beside[one]):
        reader = min(beside[number] or range(len(servers)), key=lambda rank: (given[rank], rank))
        readers[number] = reader
        given[reader] += 1
    return readers
