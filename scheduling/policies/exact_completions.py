"""Planning instants of ElasticFlow's published simulator, where they differ from the slot grid."""

from __future__ import annotations

from math import ceil, inf

from scheduling.core.arrays import TIME_TOLERANCE, Plans
from scheduling.core.problem import Problem


def wake_at_exact_completion(problem: Problem, plans: Plans) -> float:
    """The whole second in which the first plan ends, but at least a slot after the next one begins.

    On the caller's axis; infinity when no plan ends.
    """
    finish = float(plans.finish[: problem.count][plans.length[: problem.count] > 0].min(initial=inf))
    if finish == inf:
        return inf
    whole = ceil(problem.now + finish - TIME_TOLERANCE)
    return max(float(whole), problem.next_slot_at + problem.slot)
