"""Seeded streams of uniform numbers.

Each purpose has a stream of its own and each job takes a fixed count of numbers from it, needed or not: so
changing one choice (the share of best effort, say) moves nothing else, and fewer jobs are the first of more
jobs. Only uniform numbers are taken from NumPy, whose other distributions may change between its versions.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from scheduling.core.question.snapshot import FloatArray


class WorkloadDraw(IntEnum):
    """What numbers are drawn for (ElasticFlow's generator has these five; spec 4.1)."""

    MODEL = 0
    ARRIVAL = 1
    DURATION = 2
    GPUS = 3
    DEADLINE = 4


def uniforms(seed: int, stream: WorkloadDraw, jobs: int) -> FloatArray:
    """Two numbers in [0, 1) for each job, shape (jobs, 2)."""
    source = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(int(stream),)))
    return source.random((jobs, 2))
