"""What a job could do on an empty cluster: whether it can be promised at all, whoever else is there."""

from __future__ import annotations

from math import inf

import numpy as np

from scheduling.core.elasticflow.minimum_satisfactory_share import Terms, fill
from scheduling.core.plans.timeline import new_timeline
from scheduling.core.problem import reasons
from scheduling.core.problem.problem import Problem
from scheduling.core.question.columns import BEST_EFFORT
from scheduling.core.question.decision import Verdict


def impossible(problem: Problem, row: int, job: reasons.VerdictFacts) -> Verdict | None:
    """Why the newcomer cannot run, or meet its deadline, even alone; None where it can.

    A job without a deadline needs a level and work.
    """
    if problem.jobs.level_count[row] == 0:
        return reasons.no_levels(job, problem.gpus)
    if problem.columns.remaining_iterations[row] <= 0.0:
        return reasons.no_work(job)
    if problem.columns.service_class[row] == BEST_EFFORT:
        return None
    if job.deadline_at <= problem.now:
        return reasons.deadline_passed(job, problem.now)
    if not peak_gpus_alone(problem, row, float(problem.due[row] - problem.slack_seconds[row])):
        fastest, gpus = _fastest_alone(problem, row)
        if gpus == 0:
            return reasons.no_levels(job, problem.promise_gpus)
        return reasons.too_slow_alone(job, problem.now, fastest, gpus)
    return None


def peak_gpus_alone(problem: Problem, row: int, due: float) -> int:
    """Peak GPUs of the job's plan on an empty cluster; 0 if it is late even there.

    ``due``: when the job's last iteration must end, in seconds from now.
    """
    timeline = new_timeline(problem.origin, problem.gpus, problem.promise_gpus)
    draft = problem.scratch(timeline.pieces)
    terms = Terms(guarded=True, suffix=False)
    pieces, _, _ = fill(problem.jobs, row, due, timeline, problem.slots, terms, draft)
    return int(draft.gpus[:pieces].max()) if pieces else 0


def _fastest_alone(problem: Problem, row: int) -> tuple[float, int]:
    """Least seconds from now to the stored result on an empty cluster, and the GPUs that take; (inf, 0) if no
    level fits."""
    jobs = problem.jobs
    last = int(np.searchsorted(jobs.levels[row, : jobs.level_count[row]], problem.promise_gpus, "right"))
    if last == 0:
        return inf, 0
    seconds = jobs.pause[row, :last] + jobs.work[row] / jobs.throughput[row, :last]
    best = int(np.argmin(seconds))
    total = problem.origin + float(seconds[best]) + float(jobs.finishing[row])
    return total + float(problem.slack_seconds[row]), int(jobs.levels[row, best])
