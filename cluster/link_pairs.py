"""Which pairs of servers have their link measured: all of a few servers, some of each of many (pure)."""

from __future__ import annotations

from collections.abc import Sequence

#: Up to so many servers every pair is measured.
MOST_WITH_ALL_PAIRS = 16

Pair = tuple[int, int]


def pair_of(one: int, other: int) -> Pair:
    """Two servers in the order in which they are kept. Raises ValueError for a server with itself."""
    if one == other:
        raise ValueError(f"server {one} has no link to itself")
    return (min(one, other), max(one, other))


def pairs_of(servers: Sequence[int]) -> list[Pair]:
    """The pairs to measure of these servers, in ascending order.

    Of many servers each has links to those 1, 2, 4, 8 and so on places further in a ring: a slow server is
    seen by all of its neighbours, a slow part of the network by some, and there are n log n of them.
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
    """Of these, in their order, so many that no server is in two of them."""
    taken: set[int] = set()
    chosen: list[Pair] = []
    for pair in pairs:
        if len(chosen) == most:
            break
        if taken.isdisjoint(pair):
            taken.update(pair)
            chosen.append(pair)
    return chosen
