"""Make room for a newcomer that Algorithm 1 refuses, where that harms less than it brings (decision 0011).

A promise brings one met deadline. Making room for it costs GPU time: what the newcomer needs, and what other
promises need beyond their plans of Algorithm 1, since they move to larger, less efficient levels. That GPU
time is missing for later newcomers. So room is made where it costs no more GPU time than a typical newcomer
needs: the median of the newcomers of late.
"""

from __future__ import annotations

from math import inf, isfinite

import numpy as np

from scheduling.core.elasticflow.promises import Promises
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.elasticflow.wider_search import gpu_time_needed, planned_seconds, searched
from scheduling.core.problem.reasons import CostlyRoom
from scheduling.core.question.arrays import Plans


def room_made(
    admission: Promises, row: int, limits: SearchLimits, typical: float
) -> tuple[Plans | None, CostlyRoom | None]:
    """Plans that keep all promises and the newcomer's (``row``), or None, and why found plans are not taken.

    ``typical``: GPU seconds that a typical newcomer needs.
    """
    problem = admission.problem
    most = inf if limits.everybody else typical
    due = float(problem.due[row] - problem.slack_seconds[row])
    needed = gpu_time_needed(problem, row, due - problem.origin)
    if isfinite(needed) and needed > most:
        return None, CostlyRoom(needed, most)
    plans = searched(admission, row, limits)
    if plans is None or most == inf:
        return plans, None
    taken = planned_seconds(admission, plans, [*admission.own_rows(), row]) - _without_newcomer(admission)
    return (plans, None) if taken <= most else (None, CostlyRoom(taken, most))


def _without_newcomer(admission: Promises) -> float:
    """GPU seconds of the present promises under Algorithm 1: filled afresh, or the present plans if that
    fails."""
    problem, rows = admission.problem, admission.own_rows()
    afresh, failing = admission.filled_in_order(
        admission.in_deadline_order(rows), np.zeros(problem.jobs.work.size), suffix=problem.suffix
    )
    return planned_seconds(admission, admission.plans if failing is not None else afresh, rows)
