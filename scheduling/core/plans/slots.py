"""Slots: the instants at which GPUs change hands as a rule (contracts 4)."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from scheduling.core.kernels import leaf
from scheduling.core.question.arrays import TIME_TOLERANCE


class Slots(NamedTuple):
    """The grid of slots from now on: the next one begins at ``origin`` and each lasts ``seconds``."""

    origin: float
    seconds: float


@leaf
def slot_end(at: float, slots: Slots) -> float:
    """The first slot boundary at or after ``at``."""
    origin = slots.origin
    if at <= origin + TIME_TOLERANCE:
        return origin
    return origin + ceil((at - origin - TIME_TOLERANCE) / slots.seconds) * slots.seconds
