"""Bounds on the speed of any plan: the published upper bound on throughput, and a proved lower bound on time.

The published bound makes compression free and selects again. A greedy selection proves nothing. The other
counts only bytes, without latencies, because fusion could save these.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from communication.espresso.baselines import fastest_by_itself
from communication.espresso.chains import option_table
from communication.espresso.costs import CostModel
from communication.espresso.operations import Resource
from communication.espresso.question import Question
from communication.espresso.selection import Selection, select
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile

_WEIGHTS = np.linspace(0.0, 1.0, 5)
_HUGE_ELEMENTS = 1 << 36


def free_compression_seconds(question: Question, selection: Selection) -> float:
    """Return the published Upper Bound: an iteration in which compression takes no time.

    It is the minimum over a selection under these costs, each tensor's best exchange alone, and the given
    selection.
    """
    free = question.under(replace(question.costs, free_compression=True))
    by_itself = fastest_by_itself(free, np.arange(len(free.options)))
    engine = free.engine
    return min(
        select(free).seconds,
        engine.seconds(by_itself),
        engine.seconds(selection.strategy),
        selection.seconds,
    )


def least_iteration_seconds(question: Question) -> float:
    """Return a lower bound for all strategies of these options, with any fusion: everything that is ready
    from some tensor on has to pass the links at their bandwidth.

    Links within and between servers are weighed against each other, because options can shift bytes from one
    to the other.
    """
    model = question.model
    # A tensor so large that scales and rounded-up parts are negligible.
    huge = ModelProfile.unnamed("huge", np.array([_HUGE_ELEMENTS]), np.zeros(1))
    huge = replace(huge, bytes_per_element=model.bytes_per_element)
    totals = option_table(huge, _without_latency(question.costs), question.options).chains.totals[0]
    within, between = totals[:, Resource.WITHIN], totals[:, Resource.BETWEEN]
    ready = np.cumsum(model.gap_seconds)
    still_to_send = np.cumsum(model.elements[::-1])[::-1] / _HUGE_ELEMENTS
    found = float(ready[-1])
    for weight in _WEIGHTS:
        least = float((weight * between + (1.0 - weight) * within).min())
        found = max(found, float((ready + still_to_send * least).max()))
    return model.other_seconds + found


def _without_latency(costs: CostModel) -> CostModel:
    links = costs.links
    return replace(
        costs,
        free_compression=True,
        links=LinkProfile(
            LinkRate(0.0, links.between.bytes_per_second),
            LinkRate(0.0, links.within.bytes_per_second),
            links.share,
        ),
    )
