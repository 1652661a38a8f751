"""Place promises where their forecast put them, then all other jobs; what finds no buddy block shrinks."""

from __future__ import annotations

from math import inf

import numpy as np

from kernels.compiling import NO
from scheduling.core.elasticflow.elastic_allocation import LOWEST_LEVEL
from scheduling.core.elasticflow.minimum_satisfactory_share import Terms, fill
from scheduling.core.elasticflow.promises import Promises
from scheduling.core.elasticflow.settling import wanted_gpus
from scheduling.core.placement.occupancy import Occupancy
from scheduling.core.placement.repacking import Seating, repack_promises_first
from scheduling.core.plans.timeline import occupied
from scheduling.core.question.arrays import Plans, copy_plans, set_plan
from scheduling.core.question.snapshot import FloatArray


def placed_promises_first(
    admission: Promises,
    seating: Seating,
    plans: Plans,
    unpromised: list[int],
    slack: FloatArray,
    *,
    shrink_promises: bool,
) -> tuple[Plans, Occupancy] | None:
    """Place all jobs in the next slot, promises first; None if that fails.

    An unpromised job that finds no buddy block shrinks to a lower level. Blocked GPUs can split the free ones
    so that even a promised job finds no block; with ``shrink_promises`` it shrinks for one slot too.
    ``slack``: see `Occupancy`.
    """
    problem = admission.problem
    wanted = wanted_gpus(plans, problem.count)
    shrinking, plans = set(unpromised), copy_plans(plans)
    while True:
        occupancy, failed = repack_promises_first(seating, wanted, admission.rows, slack)
        if not failed:
            return plans, occupancy
        if not shrink_promises and not set(failed) <= shrinking:
            return None
        for row in failed:
            lower = [level for level in problem.jobs.levels[row] if level < wanted[row]]
            wanted[row] = max(lower, default=0)
            plans = _with_head(admission, plans, row, int(wanted[row]), unpromised)


def _with_head(admission: Promises, plans: Plans, row: int, gpus: int, unpromised: list[int]) -> Plans:
    """Plan one job with ``gpus`` GPUs in the next slot; a promised job in time, if that is possible."""
    problem = admission.problem
    promised = [other for other in admission.rows if other != row]
    timeline = admission.timeline(promised, plans)
    draft = problem.scratch(timeline.pieces)
    if row not in unpromised:
        due = float(problem.due[row])
        terms = Terms(guarded=False, suffix=problem.suffix, head=gpus)
        pieces, finish, gpu_time = fill(problem.jobs, row, due, timeline, problem.slots, terms, draft)
        if pieces:
            return set_plan(plans, row, draft, pieces, finish, gpu_time)
    others = [other for other in unpromised if other != row and plans.length[other] > 0]
    timeline = occupied(timeline, plans, np.array(others, dtype=np.int64), NO)
    draft = problem.scratch(timeline.pieces)
    terms = Terms(guarded=False, suffix=False, head=gpus, highest=LOWEST_LEVEL)
    pieces, finish, gpu_time = fill(problem.jobs, row, inf, timeline, problem.slots, terms, draft)
    if pieces:
        return set_plan(plans, row, draft, pieces, finish, gpu_time)
    plans.length[row] = 0
    plans.finish[row] = inf
    return plans
