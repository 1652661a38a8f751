"""The GPU compression decision: which tensors are compressed, and how (Espresso 4.4, Algorithm 4.1).

Tensors are decided one after the other, larger ones first. Those before the last bubble are removed, since
shorter exchanges before it only widen it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from communication.espresso.choices import Choices
from communication.espresso.timeline import EQUAL_SECONDS
from communication.profiles.arrays import Integers

MOST_PASSES = 5


def decide(
    choices: Choices, start: Integers, candidates: Sequence[Integers], *, removes: bool = True
) -> tuple[Integers, float]:
    """One pass of Algorithm 4.1 over all tensors, and the iteration under its strategy.

    Args:
        start: the strategy to begin with; it is not changed.
        candidates: for each size, columns in the order in which they win ties.
        removes: whether uncompressed tensors before a bubble are left as they are.
    """
    engine, size_of = choices.engine, choices.size_of
    strategy = start.copy()
    seconds = engine.seconds(strategy)
    kept = _after_the_last_bubble(choices, strategy) if removes else np.ones(len(strategy), dtype=np.bool_)
    for tensor in choices.order:
        if not kept[tensor]:
            continue
        column, found = engine.best_candidate(strategy, int(tensor), candidates[size_of[tensor]], seconds)
        if column == strategy[tensor]:
            continue
        strategy[tensor], seconds = column, found
        if removes:
            kept &= _after_the_last_bubble(choices, strategy)
    return strategy, seconds


def passes(
    choices: Choices,
    start: Integers,
    candidates: Sequence[Integers],
    *,
    removes: bool = True,
    most: int = MOST_PASSES,
) -> tuple[Integers, float]:
    """Passes of Algorithm 4.1, each from what the one before chose, until one changes nothing."""
    strategy, seconds = start, choices.engine.seconds(start)
    for _ in range(most):
        found, found_seconds = decide(choices, strategy, candidates, removes=removes)
        if found_seconds >= seconds - EQUAL_SECONDS:
            break
        strategy, seconds = found, found_seconds
    return strategy, seconds


def _after_the_last_bubble(choices: Choices, strategy: Integers) -> NDArray[np.bool_]:
    """Remove(S): which tensors stay: those that are compressed, and those behind the last bubble."""
    behind = np.arange(len(strategy)) >= choices.engine.last_bubble(strategy)
    return np.asarray(behind | (choices.compressions[strategy] > 0))
