"""Figures of jobs that run on the GPU count their user requested."""

from __future__ import annotations

import numpy as np

from scheduling.core.problem.problem import Problem
from scheduling.core.question.snapshot import FloatArray, IntArray


def at_sizes(problem: Problem, column: FloatArray, sizes: IntArray) -> FloatArray:
    """The value of a curve matrix (``throughput``, ``pause``) for each job at its size; 0 without one."""
    found = problem.jobs.levels[: problem.count] == sizes[:, None]
    values: FloatArray = np.where(found, column[: problem.count], 0.0).sum(axis=1)
    return values


def rates_at(problem: Problem, sizes: IntArray) -> FloatArray:
    """Iterations per second of each job at its size; 0 without one."""
    return at_sizes(problem, problem.jobs.throughput, sizes)


def leases_held(problem: Problem, sizes: IntArray) -> FloatArray:
    """Number of slots for which each job has held its GPUs so far."""
    held: FloatArray = problem.columns.attained_gpu_seconds / (np.maximum(sizes, 1) * problem.slot)
    return held
