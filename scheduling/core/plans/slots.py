"""Slots: the instants at which GPUs change hands as a rule (contracts 4)."""

from __future__ import annotations

from math import ceil

from scheduling.core.kernels import kernel
from scheduling.core.question.arrays import TIME_TOLERANCE


@kernel
def slot_end(at: float, origin: float, slot: float) -> float:
    """The first slot boundary at or after ``at``."""
    if at <= origin + TIME_TOLERANCE:
        return origin
    return origin + ceil((at - origin - TIME_TOLERANCE) / slot) * slot
