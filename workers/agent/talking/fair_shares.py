"""Fair sharing of a report's capacity among workers, so that a verbose one does not crowd out the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key")


def fair_shares(demands: Mapping[Key, int], total: int) -> dict[Key, int]:
    """Return max-min fair shares of `total`: no share exceeds its demand, and the others get the rest.

    Integers; a remainder goes to the smallest demands.
    """
    shares: dict[Key, int] = {}
    left = max(0, total)
    waiting = sorted(demands, key=lambda key: demands[key])
    for place, key in enumerate(waiting):
        share = min(demands[key], -(-left // (len(waiting) - place)))
        shares[key] = share
        left -= share
    return shares


Item = TypeVar("Item")


def in_turns(queues: Sequence[Sequence[Item]]) -> list[Item]:
    """Interleave the queues: one item of each in turn, each queue in its own order."""
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[place] for place in range(longest) for queue in queues if place < len(queue)]
