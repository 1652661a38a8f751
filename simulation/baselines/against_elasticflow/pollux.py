"""Pollux: GPUs are divided for the fairest goodput, which is throughput times statistical efficiency.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning" (OSDI 2021), section
4.2, as ElasticFlow compares with it.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.core.question.snapshot import FloatArray, IntArray
from scheduling.policies.dispatching import answer_with_sizes, take_all
from scheduling.policies.without_promises import Contest, WithoutPromises, contest
from simulation.baselines.against_elasticflow.pollux_kernels import cheapest_exactly, cheapest_greedily

INTERVAL_SECONDS = 60.0
RESTART_SECONDS = 30.0
LARGEST_SIZE = 64
WAITING_SPEEDUP = 0.01
"""The speed-up that counts for a waiting job, since a power mean of exponent -1 allows no 0."""

MOST_STATES = 20_000_000
"""Product of jobs and GPUs up to which the division is exact."""

RESTARTS, LARGEST = 0, 1


class Pollux(WithoutPromises):
    """Every minute, the sizes with the best power mean (exponent -1) of the jobs' speed-ups.

    A speed-up is goodput over goodput at a fair share of the cluster, lowered for a job that would be
    restarted by (age - 30 s times its restarts) / (age + 30 s). A job may get twice the GPUs it ever had, 64
    at most.

    Goodput is iterations of the job's own batch size per second. Where the workload brings curves for which
    the batch size is adapted to the GPUs (in simulations), the job runs along those; else the batch stays and
    goodput is throughput. Deviations: placement is consolidated, so a job's goodput depends on its size
    alone, and the best sizes are found exactly, by dynamic programming, where Pollux searches job-by-server
    matrices genetically (population 100, 100 generations); very large clusters are divided step by step.
    Sizes are the measured ones. A restart costs the measured pause, not 30 s; a first start counts as none.
    """

    name = "pollux"
    any_measured_size = True
    memory_columns = ("restarts", "largest_size")

    def reallocate(self, problem: Problem) -> Answer:
        """Divide the cluster anew."""
        verdicts = take_all(problem)
        field = contest(problem)
        rows = field.rows
        held = problem.columns.gpus
        sizes = _sizes(problem, rows)
        cost = _costs(problem, field, sizes)
        states = rows.size * field.gpus
        exactly = states <= MOST_STATES
        divide = cheapest_exactly if exactly else cheapest_greedily
        wanted = field.kept
        wanted[rows] = sizes[np.arange(rows.size), divide(cost, sizes, field.gpus)]
        memory = problem.columns.memory.copy()
        memory[:, RESTARTS] += (held > 0) & (wanted > 0) & (wanted != held)
        memory[:, LARGEST] = np.maximum(memory[:, LARGEST], wanted)
        wake = problem.next_slot_at + max(problem.slot, INTERVAL_SECONDS) if rows.size else inf
        answer = answer_with_sizes(problem, verdicts, wanted, job_memory=memory, next_wake_at=wake)
        how = "exactly" if exactly else "step by step"
        return replace(answer, notes=(f"{rows.size} jobs x {field.gpus} GPUs divided {how}",))


def _sizes(problem: Problem, rows: IntArray) -> IntArray:
    """GPU counts to choose from, one row for each job: 0, then its measured counts, then 0."""
    jobs = problem.jobs
    inside = np.arange(jobs.levels.shape[1]) < jobs.level_count[rows, None]
    measured = np.where(inside, jobs.levels[rows], 0)
    return np.concatenate((np.zeros((rows.size, 1), dtype=np.int64), measured), axis=1)


def _costs(problem: Problem, field: Contest, sizes: IntArray) -> FloatArray:
    """Inverse speed-ups, whose sum a power mean of exponent -1 minimises; infinity for sizes that are not
    allowed."""
    rows, jobs = field.rows, problem.jobs
    if not rows.size:
        return np.zeros((0, 1))
    goodput = jobs.throughput[rows]
    fair = max(1, field.gpus // rows.size)
    at_fair = np.maximum((sizes[:, 1:] > 0) & (sizes[:, 1:] <= fair), np.arange(goodput.shape[1]) == 0)
    column = goodput.shape[1] - 1 - at_fair[:, ::-1].argmax(axis=1)
    speed_up = goodput / goodput[np.arange(rows.size), column][:, None]
    held = problem.columns.gpus[rows]
    memory = problem.columns.memory[rows]
    age = np.maximum(0.0, problem.next_slot_at - problem.columns.submitted_at[rows])
    lowered = np.clip((age - RESTART_SECONDS * memory[:, RESTARTS]) / (age + RESTART_SECONDS), 0.0, 1.0)
    restarted = (held > 0)[:, None] & (sizes[:, 1:] != held[:, None])
    speed_up = np.where(restarted, speed_up * lowered[:, None], speed_up)
    largest = np.minimum(LARGEST_SIZE, np.maximum(2.0 * memory[:, LARGEST], jobs.levels[rows, 0]))
    allowed = (sizes[:, 1:] > 0) & (sizes[:, 1:] <= largest[:, None])
    running = np.where(allowed, 1.0 / np.maximum(speed_up, WAITING_SPEEDUP), inf)
    waiting = np.full((rows.size, 1), 1.0 / WAITING_SPEEDUP)
    return np.concatenate((waiting, running), axis=1)
