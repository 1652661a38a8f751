"""Packing jobs into leases, each as late as its deadline allows."""

from __future__ import annotations

import numpy as np

from kernels.compiling import ZERO, kernel, whole
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray

EVERYBODY_FITS = whole(-1)


@kernel
def pack_latest(
    order: IntArray, sizes: IntArray, needed: IntArray, until_due: IntArray, gpus: int
) -> tuple[int, BoolArray]:
    """Give each job of ``order`` its latest free leases before its deadline.

    ``needed``: leases that each job needs. ``until_due``: leases that end by its deadline. Returns (the first
    job that does not get enough leases, or EVERYBODY_FITS, and marks of rows that occupy the first lease).
    """
    horizon = ZERO
    for row in order:
        horizon = max(horizon, until_due[row])
    free = np.full(horizon, gpus)
    first = np.zeros(sizes.size, dtype=np.bool_)
    failing = EVERYBODY_FITS
    for row in order:
        left = needed[row]
        lease = until_due[row] - 1
        while left > 0 and lease >= 0:
            if free[lease] >= sizes[row]:
                free[lease] -= sizes[row]
                left -= 1
                first[row] = lease == 0
            lease -= 1
        if left > 0 and failing == EVERYBODY_FITS:
            failing = row
    return failing, first
