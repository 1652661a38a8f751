"""Seeded streams of uniform numbers.

Each purpose has its own stream, and each job takes a fixed count of numbers from it, used or not. So changing
one choice (the share of best effort, say) changes nothing else, and fewer jobs are a prefix of more. Only
uniform numbers are drawn, since NumPy's other distributions may change between versions.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from scheduling.core.question.snapshot import FloatArray


class WorkloadDraw(IntEnum):
    """Purpose of a draw (ElasticFlow's generator has these five)."""

    MODEL = 0
    ARRIVAL = 1
    DURATION = 2
    GPUS = 3
    DEADLINE = 4


def uniforms(seed: int, stream: WorkloadDraw, jobs: int) -> FloatArray:
    """Return two numbers in [0, 1) for each job, shape (jobs, 2)."""
    source = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(int(stream),)))
    return source.random((jobs, 2))
