"""Lyra: base demands, shortest first, then a knapsack for flexible demands, on owned and on-loan servers
(Lyra section 3.5)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from scheduling.core.lyra.base_demands import Skip
from scheduling.core.lyra.fleet import WorkerMap
from scheduling.core.lyra.tick import Division, TwoPhase, divide
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray
from scheduling.core.together.shared_problem import SharedProblem
from scheduling.core.together.sharing import Sharing
from scheduling.policies.shares_workers import SharesWorkers, chosen_rules

NEVER_RAN, RAN, STOPPED = 0.0, 1.0, 2.0
"""What is noted about a job where running jobs may move."""


class Lyra(SharesWorkers):
    """Both phases as published.

    Under spec A19 a job that found only scattered GPUs waits until a job ended or a server came. The policy
    notes two numbers about it: one plus the number of jobs that ran when it was last skipped, and the number
    of GPUs then. With fewer jobs or more GPUs it is tried again. Under spec A18 running jobs may move, and
    the policy notes which jobs were preempted, because these must stay.
    """

    name = "lyra"
    rules = TwoPhase()
    memory_columns: ClassVar[tuple[str, ...]] = ("running_beside", "gpus_then", "ran")

    def divided(self, problem: Problem, sharing: Sharing) -> Division:
        """Divide the servers by one tick."""
        rules = chosen_rules(self.rules, problem.settings.two_phase)
        workers = sharing.workers(problem.columns)
        return divide(
            sharing.fleet,
            workers,
            sharing.demands,
            rules,
            not_tried=_still_scattered(problem, workers) if rules.retry_when_freed else None,
            not_moved=_ran(problem) == STOPPED if rules.elastic_moves else None,
        )

    def noted(self, problem: Problem, division: Division) -> FloatArray | None:
        """What specs A18 and A19 need at the next tick; None where neither was chosen."""
        options = problem.settings.two_phase
        if options is None or not (options.retry_when_freed or options.elastic_moves):
            return None
        notes = np.zeros((problem.count, len(self.memory_columns)))
        if options.retry_when_freed:
            scattered = division.skipped[division.reason == Skip.FRAGMENTED]
            notes[scattered, :2] = (1 + _running(problem, division.workers), _gpus(problem))
        runs = np.diff(division.workers.offsets) > 0
        ran = _ran(problem)
        notes[:, 2] = np.where(runs & (ran == NEVER_RAN), RAN, ran)
        return notes


def _ran(problem: Problem) -> FloatArray:
    """Marks jobs that ran before; such a job without GPUs now was preempted."""
    ran = problem.columns.memory[:, 2]
    stopped: FloatArray = np.where((ran == RAN) & (problem.columns.gpus == 0), STOPPED, ran)
    return stopped


def _still_scattered(problem: Problem, workers: WorkerMap) -> BoolArray:
    """Marks pending jobs that were skipped, where no job ended and no server came since."""
    memory = problem.columns.memory
    noted = memory[:, 0] > 0.0
    no_more = (1 + _running(problem, workers) >= memory[:, 0]) & (_gpus(problem) <= memory[:, 1])
    still: BoolArray = noted & no_more & (np.diff(workers.offsets) == 0)
    return still


def _running(problem: Problem, workers: WorkerMap) -> int:
    """Number of jobs with workers or in the middle of a change."""
    columns = problem.columns
    return int(((np.diff(workers.offsets) > 0) | (columns.locked & (columns.gpus > 0))).sum())


def _gpus(problem: Problem) -> int:
    """Number of usable GPUs, on-loan ones included."""
    return int(problem.sharing.fleet.gpus.sum()) if isinstance(problem, SharedProblem) else problem.gpus
