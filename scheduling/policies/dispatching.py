"""From GPU counts to an answer, for policies that decide only the next slot.

Such a policy gives each job a number of GPUs; placement, changes and pauses are those of every other policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from kernels.compiling import kernel
from scheduling.core.placement.changes import Changes, changes_of
from scheduling.core.placement.placing_together import placed_together
from scheduling.core.plans.slots import Slots, slot_end
from scheduling.core.problem import reasons
from scheduling.core.problem.answer import Answer, rows_of
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import JobArrays, Placements, Plans, level_index, no_plans
from scheduling.core.question.columns import BEST_EFFORT
from scheduling.core.question.decision import Verdict
from scheduling.core.question.snapshot import FloatArray, IntArray


def take_all(problem: Problem) -> tuple[Verdict, ...]:
    """Admit every newcomer that can run, without a promise."""
    verdicts = []
    for row in problem.newcomers:
        facts = reasons.job_facts(problem, row)
        if problem.jobs.level_count[row] == 0:
            verdicts.append(reasons.no_levels(facts, problem.gpus))
        elif problem.columns.service_class[row] == BEST_EFFORT:
            verdicts.append(reasons.best_effort(facts))
        else:
            verdicts.append(reasons.no_promises(facts))
    return tuple(verdicts)


def requested_sizes(problem: Problem) -> IntArray:
    """The GPU count of each job under a policy without elasticity.

    It is the smallest measured count that is at least the requested one, else the largest measured one. A job
    without a request gets the smallest count on which it alone meets its deadline; without a deadline, the
    smallest of all.
    """
    jobs, columns = problem.jobs, problem.columns
    sizes: IntArray = _requested(
        jobs, columns.requested_gpus, columns.deadline_at - columns.submitted_at, columns.total_iterations
    )
    return sizes


@kernel
def _requested(jobs: JobArrays, requested: IntArray, seconds: FloatArray, iterations: FloatArray) -> IntArray:
    sizes = np.zeros(requested.size, dtype=np.int64)
    for row in range(requested.size):
        count = jobs.level_count[row]
        if count == 0:
            continue
        chosen = -1
        for level in range(count):
            if requested[row] > 0:
                fits = jobs.levels[row, level] >= requested[row]
            else:
                fits = seconds[row] == inf or jobs.throughput[row, level] * seconds[row] >= iterations[row]
            if fits and chosen < 0:
                chosen = level
        sizes[row] = jobs.levels[row, chosen if chosen >= 0 else count - 1]
    return sizes


def answer_newcomers(
    problem: Problem,
    verdicts: Sequence[Verdict],
    *,
    next_wake_at: float,
    job_memory: FloatArray | None = None,
    cluster_memory: FloatArray | None = None,
) -> Answer:
    """An answer with verdicts only: all jobs keep their GPUs."""
    columns = problem.columns
    planned = np.zeros(problem.count, dtype=np.bool_)
    return Answer(
        problem=problem,
        verdicts=tuple(verdicts),
        plans=problem.stored,
        planned=planned,
        declined=rows_of(list(verdicts), problem),
        placements=Placements(columns.addresses, columns.offsets),
        changes=(),
        at_risk=(),
        next_wake_at=next_wake_at,
        job_memory=job_memory,
        cluster_memory=problem.cluster_memory if cluster_memory is None else cluster_memory,
    )


def answer_with_sizes(
    problem: Problem,
    verdicts: Sequence[Verdict],
    wanted: IntArray,
    *,
    next_wake_at: float,
    plans: Plans | None = None,
    job_memory: FloatArray | None = None,
    cluster_memory: FloatArray | None = None,
) -> Answer:
    """An answer that gives row i ``wanted[i]`` GPUs from the next slot on.

    ``wanted``: one entry for each row, 0 or a measured GPU count of the job, a power of two. The sum fits the
    usable GPUs; otherwise jobs that are placed last get none. Rows of refused newcomers must be 0. ``plans``:
    forecasts to store; without them each job is planned to keep its GPUs until it ends. ``next_wake_at``:
    when the policy must decide again at the latest, on the caller's axis.
    """
    wanted = np.concatenate((wanted, np.zeros(problem.jobs.work.size - wanted.size, dtype=np.int64)))
    locked = problem.locked
    wanted[locked] = problem.jobs.gpus[locked]
    changes, failed = _placed(problem, wanted)
    wanted[failed] = 0
    if plans is None:
        plans = no_plans(problem.jobs.work.size, 2)
        _keep_until_done(problem.jobs, plans, wanted, problem.slots)
    declined = rows_of(list(verdicts), problem)
    return Answer(
        problem=problem,
        verdicts=tuple(verdicts),
        plans=plans,
        planned=(plans.length[: problem.count] > 0) & ~declined,
        declined=declined,
        placements=changes.placements,
        changes=changes.changes,
        changed=changes.rows,
        at_risk=(),
        next_wake_at=next_wake_at,
        job_memory=job_memory,
        cluster_memory=problem.cluster_memory if cluster_memory is None else cluster_memory,
    )


def _placed(problem: Problem, wanted: IntArray) -> tuple[Changes, IntArray]:
    """Place all jobs. Returns the changes and the rows that found no room.

    Of jobs that wait for each other in a circle, the one with the latest deadline is suspended first.
    """
    columns = problem.columns
    found, failed = placed_together(
        problem.blocks, problem.jobs, columns.addresses, columns.offsets, problem.blocked, wanted,
        -problem.by_deadline,
    )  # fmt: skip
    return changes_of(problem.present_placement, found), failed


@kernel
def _keep_until_done(jobs: JobArrays, plans: Plans, wanted: IntArray, slots: Slots) -> None:
    """One piece for each job: its GPUs until the slot boundary after its last iteration."""
    origin = slots.origin
    for row in range(wanted.size):
        level = level_index(jobs, row, wanted[row])
        if wanted[row] == 0 or level < 0 or jobs.throughput[row, level] <= 0.0:
            continue
        pause = jobs.pause_left[row]
        if wanted[row] != jobs.gpus[row]:
            pause = max(pause, jobs.pause[row, level])
        finish = origin + pause + jobs.work[row] / jobs.throughput[row, level]
        plans.time[row, 0] = origin
        plans.gpus[row, 0] = wanted[row]
        plans.time[row, 1] = slot_end(finish + jobs.finishing[row], slots)
        plans.gpus[row, 1] = 0
        plans.length[row] = 2
        plans.finish[row] = finish
        plans.gpu_time[row] = wanted[row] * (finish - origin)
