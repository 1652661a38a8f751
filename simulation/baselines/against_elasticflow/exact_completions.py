"""Planning instants of ElasticFlow's published simulator, where they differ from the slot grid."""

from __future__ import annotations

from math import ceil, inf

import numpy as np

from scheduling.core.problem.answer import Answer
from scheduling.core.question.arrays import TIME_TOLERANCE
from simulation.baselines.against_elasticflow.requests import rates_at


def wake_at_exact_completion(answer: Answer) -> float:
    """The whole second in which the first running job ends, but at least a slot after the next slot begins.

    In seconds on the caller's axis; infinity when no job runs.
    """
    problem = answer.problem
    jobs, count = problem.jobs, problem.count
    rates = rates_at(problem, np.diff(answer.placements.offsets))
    pause = jobs.pause_left[:count].copy()
    for row, change in zip(answer.changed, answer.changes, strict=True):
        pause[row] = change.pause_seconds
    running = rates > 0
    seconds = pause[running] + jobs.work[:count][running] / rates[running]
    if not seconds.size:
        return inf
    whole = float(ceil(problem.now + problem.origin + float(seconds.min()) - TIME_TOLERANCE))
    return max(whole, problem.next_slot_at + problem.slot)
