"""Gain of a job whose batch size follows its workers, for unmeasured models (Lyra section 3.7.1).

The form is Pollux's: with batch b a step takes a fixed part of the time and a part that grows with b over the
workers. An iteration with batch b is worth b / own batch iterations times the statistical efficiency (noise
scale + own batch) / (noise scale + b). The jobs' values are not published; those here are assumptions, the
same for every job, and determine the gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.core.question.snapshot import FloatArray


@dataclass(frozen=True, slots=True)
class Tuning:
    """Assumptions. Batches and the noise scale are multiples of the job's own batch, workers of the requested
    ones.

    ``fixed_share``: part of a step's time that does not grow with the batch. ``largest_batch``: in total, and
    per worker, by its memory.
    """

    noise_scale: float = 10.0
    fixed_share: float = 0.2
    largest_batch: float = 8.0
    largest_batch_per_worker: float = 4.0


BATCHES = 64


def tuned_gain(workers: FloatArray, tuning: Tuning) -> FloatArray:
    """Return goodput with the best batch over goodput with the job's own; ``workers`` are multiples of the
    requested ones."""
    batch = np.geomspace(1.0, tuning.largest_batch, BATCHES)[None, :]
    share = np.asarray(workers, dtype=np.float64)[:, None]
    moving = 1.0 - tuning.fixed_share
    seconds = tuning.fixed_share + moving * batch / share
    efficiency = (tuning.noise_scale + 1.0) / (tuning.noise_scale + batch)
    goodput = np.where(
        batch <= np.maximum(1.0, tuning.largest_batch_per_worker * share), batch * efficiency / seconds, 0.0
    )
    best: FloatArray = goodput.max(axis=1) / goodput[:, 0]
    return best
