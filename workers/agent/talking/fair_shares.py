"""Sharing what a report can carry among workers, so that one that talks without end silences no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key")


def fair_shares(demands: Mapping[Key, int], total: int) -> dict[Key, int]:
    """Max-min fair shares of `total`: nobody gets more than it asks for, and what one leaves the others get.

    Whole numbers; what cannot be divided goes to those that come first.
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
    """One item of each queue after the other, each queue in its own order."""
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[place] for place in range(longest) for queue in queues if place < len(queue)]
