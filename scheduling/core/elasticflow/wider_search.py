"""The wider search: plans for one more promise where progressive filling in deadline order finds none.

ElasticFlow fills jobs in deadline order, each under one level cap (section 4.1). If that succeeds, all
promises are kept. If it fails, other plans may still keep them. The search fills all jobs from scratch under
both variants of filling. A job that fails moves to the front of the order, and all jobs are filled again. A
job that forced moves make late is filled again with room for their pauses. Of the plans that each variant
finds, the search takes those that need the least GPU time. The pause budget checks them, like every other set
of plans. `making_room.py` decides whether they are worth their GPU time (decision 0011).
"""

from __future__ import annotations

from math import inf

import numpy as np

from scheduling.core.elasticflow.deadline_order import Refilled
from scheduling.core.elasticflow.promises import Promises
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.plans.charging import planned_gpu_time
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE, Plans

MOST_RESCUES = 24
"""Sets of plans that are tried to save present promises, under one variant of filling."""


def searched(admission: Promises, row: int, limits: SearchLimits) -> Plans | None:
    """Plans that keep all promises and the newcomer's (``row``), with all pauses; None if none was found."""
    present = admission.own_rows()
    rows = [*admission.rows, row]
    tries = limits.fillings(len(rows))
    best, least = None, inf
    for suffix in (admission.problem.suffix, not admission.problem.suffix):
        first = admission.deadline_order(suffix=suffix).with_newcomer(present, row)
        found = _lifted(admission, rows, tries, suffix=suffix, first=first, most_work=limits.most_work)
        if found is not None and (needed := planned_seconds(admission, found, [*present, row])) < least:
            best, least = found, needed
    return best


def planned_anew(admission: Promises, *, most_work: float = inf) -> Plans | None:
    """New plans for the present promises, with room for the pauses of all forced moves; None if none.

    ``most_work``: units of `Work` under one variant of filling after which no further set is tried.

    This is needed when forced moves break both the refilled and the stored plans. That happens when a job
    ends earlier than planned, so other jobs are placed differently from the forecast.
    """
    for suffix in (admission.problem.suffix, not admission.problem.suffix):
        found = _lifted(admission, admission.rows, MOST_RESCUES, suffix=suffix, most_work=most_work)
        if found is not None:
            return found
    return None


def gpu_time_needed(problem: Problem, row: int, seconds: float) -> float:
    """GPU seconds of the job, pause included, on its smallest level that ends it within ``seconds``; infinity
    if no level does."""
    jobs = problem.jobs
    levels = slice(0, int(jobs.level_count[row]))
    taken = jobs.pause[row, levels] + jobs.work[row] / jobs.throughput[row, levels]
    enough = np.flatnonzero(taken <= seconds + TIME_TOLERANCE)
    return float(taken[enough[0]] * jobs.levels[row, enough[0]]) if enough.size else inf


def planned_seconds(admission: Promises, plans: Plans, rows: list[int]) -> float:
    """GPU seconds that ``plans`` give the jobs of ``rows``; pauses of forced moves do not count."""
    problem = admission.problem
    return float(planned_gpu_time(problem.jobs, plans, np.array(rows, dtype=np.int64)).sum())


def _lifted(
    admission: Promises,
    rows: list[int],
    most_fillings: int,
    *,
    suffix: bool,
    first: Refilled | None = None,
    most_work: float = inf,
) -> Plans | None:
    """Fill all of ``rows`` from scratch; a job that fails moves to the front of the order for the next try.

    ``first``: the result of the first try in deadline order, if it was made already. Returns plans that the
    pause budget accepts, or None.
    """
    count = admission.problem.count
    order = [one for one in admission.in_deadline_order(rows) if one < count]
    carry = np.zeros(admission.problem.jobs.work.size)
    begun = admission.work.done
    for _ in range(most_fillings):
        if admission.work.done - begun > most_work:
            return None
        if first is not None:
            plans, failing, first = first.plans, first.failing, None
        else:
            plans, failing = admission.filled_in_order(order, carry, suffix=suffix)
        if failing is not None:
            if failing == order[0]:
                return None  # the job fails even as the first in the order
            order.remove(failing)
            order.insert(0, failing)
            continue
        affordable = admission.budget.affordable(plans, rows)
        if affordable is not None:
            return affordable
        placed, late = admission.budget.late_by_moves(plans, rows)
        if not placed or not late or max(late) >= count:
            return None
        for one, seconds in late.items():
            carry[one] += seconds
    return None
