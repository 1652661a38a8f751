"""What a job gains when its batch size follows its workers, where nothing about its model was measured (Lyra
section 3.7.1; spec 2.11).

The form is Pollux's: with batch b a step takes a fixed part of the time and a part that grows with b over the
workers, and an iteration with batch b is worth the statistical efficiency (noise scale + own batch) / (noise
scale + b) of b / own batch iterations. Which values jobs have is not published; those here are assumptions,
the same for every job, and the gain hangs on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.core.question.snapshot import FloatArray


@dataclass(frozen=True, slots=True)
class Tuning:
    """Assumptions. Batches and the noise scale are in the job's own batch, workers in those that were asked
    for.

    ``fixed_share``: part of a step's time that does not grow with the batch. ``largest_batch``: in all, and
    per worker, where memory ends.
    """

    noise_scale: float = 10.0
    fixed_share: float = 0.2
    largest_batch: float = 8.0
    largest_batch_per_worker: float = 4.0


BATCHES = 64


def tuned_gain(workers: FloatArray, tuning: Tuning) -> FloatArray:
    """Goodput with the best batch over goodput with the job's own, for workers as multiples of those asked
    for."""
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
