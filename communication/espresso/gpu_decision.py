"""The GPU compression decision: which tensors are compressed, and how (Espresso 4.4, Algorithm 4.1).

Tensors are decided in sequence, larger ones first. Those before the last bubble are removed, because shorter
exchanges before it only widen it.
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
    """Run one pass of Algorithm 4.1 over all tensors; return the strategy and its iteration time.

    Args:
        start: the initial strategy; it is not changed.
        candidates: for each size, columns in tie-breaking order.
        removes: whether uncompressed tensors before a bubble are left unchanged.
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
    """Repeat passes of Algorithm 4.1, each from the previous result, until one changes nothing."""
    strategy, seconds = start, choices.engine.seconds(start)
    for _ in range(most):
        found, found_seconds = decide(choices, strategy, candidates, removes=removes)
        if found_seconds >= seconds - EQUAL_SECONDS:
            break
        strategy, seconds = found, found_seconds
    return strategy, seconds


def _after_the_last_bubble(choices: Choices, strategy: Integers) -> NDArray[np.bool_]:
    """Remove(S): return which tensors stay: compressed ones, and those after the last bubble."""
    behind = np.arange(len(strategy)) >= choices.engine.last_bubble(strategy)
    return np.asarray(behind | (choices.compressions[strategy] > 0))
