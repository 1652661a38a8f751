"""Plans for one more promise where progressive filling in deadline order finds none.

ElasticFlow fills jobs in the order of their deadlines, each under one cap for its whole horizon (section
4.1). That is enough for a yes, but a no does not prove that the promises cannot all be kept. Tried here, in
turn: the newcomer beside the present plans under the other variant of filling; then everybody afresh, where a
job that fails is lifted before all others and everything is filled again, under both variants. Where placing
the plans forces moves that make a job late, it is filled with room for them. What is found is charged and
verified like every other set of plans.

A job that is squeezed in takes what others would have been promised. So this is for newcomers that pay the
bid price of what they need (`bid_prices.py`). Decisions 0010 and 0026 hold the measurements.
"""

from __future__ import annotations

from math import inf

import numpy as np

from scheduling.core.elasticflow.deadline_order import Refilled
from scheduling.core.elasticflow.promises import Promises
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE, Plans

MOST_RESCUES = 24
"""Sets of plans tried to save present promises, under one variant of filling."""


def searched(admission: Promises, row: int, limits: SearchLimits) -> Plans | None:
    """Plans that keep all promises and the newcomer's, pauses charged, or None where none was found."""
    problem = admission.problem
    rows = [*admission.rows, row]
    due = float(problem.due[row]) - problem.slack_seconds
    beside = admission.filled_beside(row, due, suffix=not problem.suffix)
    affordable = None if beside is None else admission.budget.affordable(beside, rows)
    if affordable is not None:
        return affordable
    for suffix in (problem.suffix, not problem.suffix):
        present = [one for one in admission.rows if one < problem.count]
        first = admission.deadline_order(suffix=suffix).with_newcomer(present, row)
        tries = limits.fillings(len(rows))
        found = _lifted(admission, rows, tries, suffix=suffix, first=first, most_work=limits.most_work)
        if found is not None:
            return found
    return None


def planned_anew(admission: Promises) -> Plans | None:
    """Plans for the present promises alone, with room for the moves that placing them forces, or None.

    For when neither fresh nor stored plans survive their moves: jobs that ended earlier than planned have let
    others be placed otherwise than foreseen.
    """
    for suffix in (admission.problem.suffix, not admission.problem.suffix):
        found = _lifted(admission, admission.rows, MOST_RESCUES, suffix=suffix)
        if found is not None:
            return found
    return None


def gpu_time_needed(problem: Problem, row: int, seconds: float) -> float:
    """GPU seconds of the job alone on its smallest level that does it within ``seconds``; infinity where none
    does."""
    jobs = problem.jobs
    levels = slice(0, int(jobs.level_count[row]))
    taken = jobs.pause[row, levels] + jobs.work[row] / jobs.throughput[row, levels]
    enough = np.flatnonzero(taken <= seconds + TIME_TOLERANCE)
    return float(taken[enough[0]] * jobs.levels[row, enough[0]]) if enough.size else inf


def _lifted(
    admission: Promises,
    rows: list[int],
    most_fillings: int,
    *,
    suffix: bool,
    first: Refilled | None = None,
    most_work: float = inf,
) -> Plans | None:
    """Everybody filled afresh in deadline order; whoever fails goes before all others in the next try.

    ``first``: the first try, where it was made already.
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
                return None  # not even first of all
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
