"""Small fusion problems, and all of their partitions evaluated in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from communication.cupcake.costs import AffineCost, Cost, ThresholdCost
from communication.cupcake.problem import FusionProblem

Tried = dict[tuple[int, ...], float]


def fusion(
    backward: ArrayLike, sizes: ArrayLike, encode: Cost, transfer: Cost, other: float = 0.0
) -> FusionProblem:
    return FusionProblem(np.array(backward, float), np.array(sizes, float), encode, transfer, other)


def in_plain_python(
    backward: Sequence[float],
    sizes: Sequence[float],
    encode: Callable[[float], float],
    transfer: Callable[[float], float],
    other: float = 0.0,
) -> Tried:
    """Return the iteration times of all partitions by the rules of the timeline alone."""

    def ends(begin: int, comp: float, comm: float, before: tuple[int, ...]) -> Iterator[tuple]:
        if begin == len(sizes):
            yield before, other + comm
        for end in range(begin + 1, len(sizes) + 1):
            size = sum(sizes[begin:end])
            encoded = comp + sum(backward[begin:end]) + encode(size)
            sent = max(encoded, comm) + transfer(size)
            yield from ends(end, encoded, sent, (*before, end))

    return dict(ends(0, 0.0, 0.0, ()))


def plain(cost: Cost) -> Callable[[float], float]:
    """Return a cost of one size by its formula."""
    if isinstance(cost, AffineCost):
        return lambda size: cost.fixed_seconds + cost.seconds_per_byte * size
    assert isinstance(cost, ThresholdCost)
    return lambda size: cost.seconds * max(1.0, size / cost.threshold_bytes)


def tried_one_by_one(problem: FusionProblem) -> Tried:
    return in_plain_python(
        problem.backward_seconds.tolist(), problem.sizes_bytes.tolist(), plain(problem.encode),
        plain(problem.transfer), problem.other_seconds,
    )  # fmt: skip


def preferred(tried: Tried, tolerance: float = 1e-9) -> tuple[int, ...]:
    """Return the fastest partition with the fewest groups and, among these, the latest boundaries."""
    best = min(tried.values())
    return min(
        (one for one, seconds in tried.items() if seconds <= best + tolerance),
        key=lambda one: (len(one), tuple(-end for end in one)),
    )
