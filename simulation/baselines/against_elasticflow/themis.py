"""Themis: GPUs go to the jobs that sharing delays most, by finish-time fairness.

Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling" (NSDI 2020), section 3, in the formulation
of Gavel (Narayanan et al., OSDI 2020, section 4.2) that ElasticFlow compares with.
"""

from __future__ import annotations

from math import ceil, inf

import numpy as np

from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.core.question.snapshot import FloatArray, IntArray
from scheduling.policies.dispatching import answer_with_sizes, requested_sizes, take_all
from scheduling.policies.without_promises import WithoutPromises, contest
from simulation.baselines.against_elasticflow.requests import leases_held, rates_at
from simulation.baselines.against_elasticflow.size_kernels import fitting_in_order
from simulation.baselines.against_elasticflow.themis_kernels import fairest_fractions

ISOLATED_SECONDS, WORK_BEFORE, ISOLATED_RATE = 0, 1, 2


class Themis(WithoutPromises):
    """Every slot is a lease. A program over all jobs computes shares of time, and leases follow these shares.

    The shares minimise the worst ratio of a job's finish time here to its finish time alone on an equal part
    of the cluster. At each lease, GPUs go to the jobs with the greatest share for each lease held so far;
    jobs that held none come first. Jobs run on the GPU count their user requested. Deviations: the program is
    solved exactly by bisection instead of by a cone solver; Themis's auctions among applications are not part
    of Gavel's formulation.
    """

    name = "themis"
    any_measured_size = True
    memory_columns = ("isolated_seconds", "work_before", "isolated_rate")

    def reallocate(self, problem: Problem) -> Answer:
        """Shares, then leases in the order of share per lease held."""
        verdicts = take_all(problem)
        field = contest(problem)
        rows = field.rows
        sizes = requested_sizes(problem)
        rate = rates_at(problem, sizes)
        memory = problem.columns.memory.copy()
        known = memory[:, ISOLATED_RATE] > 0
        work = problem.jobs.work[: problem.count]
        memory[known, ISOLATED_SECONDS] += (
            np.maximum(0.0, memory[known, WORK_BEFORE] - work[known]) / memory[known, ISOLATED_RATE]
        )
        memory[:, WORK_BEFORE] = work
        if rows.size:
            equal_part = ceil(problem.gpus / rows.size)
            memory[rows, ISOLATED_RATE] = rate[rows] * np.minimum(1.0, equal_part / sizes[rows])
        shares = self._shares(problem, rows, sizes, rate, memory)
        wanted = field.kept
        held = leases_held(problem, sizes)[rows]
        priority = np.where(held > 0, shares / np.maximum(held, 1e-9), inf)
        order = rows[np.lexsort((rows, -shares, -priority))]
        fitting_in_order(order, sizes, field.gpus, wanted)
        waiting = bool((wanted[rows] == 0).any())
        return answer_with_sizes(
            problem, verdicts, wanted, job_memory=memory,
            next_wake_at=problem.next_slot_at + problem.slot if waiting else inf,
        )  # fmt: skip

    def _shares(
        self, problem: Problem, rows: IntArray, sizes: IntArray, rate: FloatArray, memory: FloatArray
    ) -> FloatArray:
        work = problem.jobs.work[rows]
        isolated = memory[rows, ISOLATED_SECONDS] + work / memory[rows, ISOLATED_RATE]
        elapsed = problem.next_slot_at - problem.columns.submitted_at[rows]
        shares: FloatArray = fairest_fractions(
            work / rate[rows], elapsed, isolated, sizes[rows].astype(np.float64), float(problem.gpus)
        )
        return shares
