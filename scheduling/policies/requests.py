"""Facts about jobs that run at the size their user asked for."""

from __future__ import annotations

import numpy as np

from scheduling.core.problem.problem import Problem
from scheduling.core.question.snapshot import FloatArray, IntArray


def at_sizes(problem: Problem, column: FloatArray, sizes: IntArray) -> FloatArray:
    """What a matrix of the curves (``throughput``, ``pause``) says for each job at its size; 0 where it has
    none."""
    found = problem.jobs.levels[: problem.count] == sizes[:, None]
    values: FloatArray = np.where(found, column[: problem.count], 0.0).sum(axis=1)
    return values


def rates_at(problem: Problem, sizes: IntArray) -> FloatArray:
    """Iterations per second of each job on its size; 0 where it has none."""
    return at_sizes(problem, problem.jobs.throughput, sizes)


def leases_held(problem: Problem, sizes: IntArray) -> FloatArray:
    """Slots for which each job has held its GPUs so far."""
    held: FloatArray = problem.columns.attained_gpu_seconds / (np.maximum(sizes, 1) * problem.slot)
    return held
