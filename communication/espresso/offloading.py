"""CPU offloading: which compressed tensors move from the GPU to the processors (Espresso 4.4, Algorithm 4.2).

Tensors of equal size and option form a group. Of each group the earliest tensors are offloaded, because more
of their time is assumed to be hidden (Lemma 4.1). The lemma does not always hold, so a final pass tries to
swap members of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from communication.espresso.choices import Choices
from communication.espresso.timeline import EQUAL_SECONDS
from communication.profiles.arrays import Integers

MOST_VECTORS = 20_000
"""Above this number of vectors, groups are searched one at a time."""
MOST_SWAPS = 2_000

Groups = Sequence[Integers]


def offload_groups(choices: Choices, strategy: Integers) -> tuple[Integers, ...]:
    """Return the tensors that compress on the GPU, by size and option; in each group by readiness."""
    able = np.flatnonzero(choices.on_cpu[strategy] >= 0)
    found: dict[tuple[int, int], list[int]] = {}
    for tensor in able:
        key = (-int(choices.size_of[tensor]), int(strategy[tensor]))
        found.setdefault(key, []).append(int(tensor))
    return tuple(np.array(found[key], dtype=np.int64) for key in sorted(found))


def offload(
    choices: Choices, strategy: Integers, *, most_vectors: int = MOST_VECTORS
) -> tuple[Integers, float]:
    """Run Algorithm 4.2: return the strategy with the best numbers of offloaded tensors, and its iteration.

    Above ``most_vectors`` the groups are searched one at a time until nothing changes.
    """
    groups = offload_groups(choices, strategy)
    if prod(len(group) + 1 for group in groups) <= most_vectors:
        return _searched(choices, strategy, groups)
    return _group_by_group(choices, strategy, groups)


def swap(
    choices: Choices, strategy: Integers, groups: Groups, *, most_swaps: int = MOST_SWAPS
) -> tuple[Integers, float]:
    """Swap an offloaded member of a group with one that is not, while that helps.

    ``groups``: as before any offloading.
    """
    engine = choices.engine
    best, seconds = strategy.copy(), engine.seconds(strategy)
    tried = 0
    improved = True
    while improved:
        improved = False
        for group in groups:
            for first, second in _pairs(best, group):
                if tried == most_swaps:
                    return best, seconds
                tried += 1
                changed = best.copy()
                changed[[first, second]] = best[[second, first]]
                found = engine.seconds(changed)
                if found < seconds - EQUAL_SECONDS:
                    best, seconds, improved = changed, found, True
                    break
    return best, seconds


def _pairs(strategy: Integers, group: Integers) -> list[tuple[int, int]]:
    columns = strategy[group]
    return [
        (int(group[first]), int(group[second]))
        for first in range(len(group))
        for second in range(first + 1, len(group))
        if columns[first] != columns[second]
    ]


def _group_by_group(choices: Choices, strategy: Integers, groups: Groups) -> tuple[Integers, float]:
    best, seconds = strategy.copy(), choices.engine.seconds(strategy)
    improved = True
    while improved:
        improved = False
        for group in groups:
            onto_gpu = best.copy()
            onto_gpu[group] = strategy[group]
            found, found_seconds = _searched(choices, onto_gpu, (group,))
            if found_seconds < seconds - EQUAL_SECONDS:
                best, seconds, improved = found, found_seconds, True
    return best, seconds


def _searched(choices: Choices, strategy: Integers, groups: Groups) -> tuple[Integers, float]:
    """Return the strategy of the best vector of these groups, and its iteration."""
    engine = choices.engine
    seconds = engine.seconds(strategy)
    if not groups:
        return strategy.copy(), seconds
    members = np.concatenate(groups)
    begins = np.concatenate([[0], np.cumsum([len(group) for group in groups])]).astype(np.int64)
    columns = choices.on_cpu[strategy[members]]
    most = np.array([len(group) for group in groups], dtype=np.int64)
    vector, seconds = engine.best_vector(strategy.copy(), (members, begins, columns), most, seconds)
    best = strategy.copy()
    for group, count in zip(groups, vector, strict=True):
        best[group[:count]] = choices.on_cpu[strategy[group[:count]]]
    return best, seconds
