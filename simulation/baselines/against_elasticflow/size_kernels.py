"""Divide the GPUs of the next slot job by job in a given order."""

from __future__ import annotations

from kernels.compiling import kernel
from scheduling.core.question.arrays import JobArrays
from scheduling.core.question.snapshot import IntArray


@kernel
def largest_in_order(jobs: JobArrays, order: IntArray, gpus: int, wanted: IntArray) -> None:
    """Give each job of ``order`` the largest of its sizes that the remaining GPUs allow; writes
    ``wanted``."""
    for row in order:
        for level in range(jobs.level_count[row] - 1, -1, -1):
            if jobs.levels[row, level] <= gpus:
                wanted[row] = jobs.levels[row, level]
                gpus -= jobs.levels[row, level]
                break


@kernel
def fitting_in_order(order: IntArray, sizes: IntArray, gpus: int, wanted: IntArray) -> None:
    """Give each job of ``order`` its size if the remaining GPUs allow it; writes ``wanted``."""
    for row in order:
        if 0 < sizes[row] <= gpus:
            wanted[row] = sizes[row]
            gpus -= sizes[row]
