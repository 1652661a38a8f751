"""Choice of server pairs whose links are measured: all pairs of a few servers, some pairs of many (pure)."""

from __future__ import annotations

from collections.abc import Sequence

#: Up to this number of servers, every pair is measured.
MOST_WITH_ALL_PAIRS = 16

Pair = tuple[int, int]


def pair_of(one: int, other: int) -> Pair:
    """Return two servers in ascending order. Raises ValueError for a server with itself."""
    if one == other:
        raise ValueError(f"server {one} has no link to itself")
    return (min(one, other), max(one, other))


def pairs_of(servers: Sequence[int]) -> list[Pair]:
    """Return the pairs to measure among these servers, in ascending order.

    With many servers, each is paired with those 1, 2, 4, 8 and so on places further in a ring: O(n log n)
    pairs. All neighbours of a slow server see it, and some pairs see a slow part of the network.
    """
    ring = sorted(set(servers))
    count = len(ring)
    if count <= MOST_WITH_ALL_PAIRS:
        steps = list(range(1, count))
    else:
        steps = [1 << power for power in range((count // 2).bit_length())]
    return sorted(
        {pair_of(ring[place], ring[(place + step) % count]) for step in steps for place in range(count)}
    )


def apart(pairs: Sequence[Pair], most: int) -> list[Pair]:
    """Return at most ``most`` of the pairs, in order, such that no server is in two of them."""
    taken: set[int] = set()
    chosen: list[Pair] = []
    for pair in pairs:
        if len(chosen) == most:
            break
        if taken.isdisjoint(pair):
            taken.update(pair)
            chosen.append(pair)
    return chosen
