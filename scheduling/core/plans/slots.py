"""Slots: the time between two reallocations."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from kernels.compiling import leaf
from scheduling.core.question.arrays import TIME_TOLERANCE


class Slots(NamedTuple):
    """The grid of slots from now on."""

    #: When the next slot begins, in seconds from now.
    origin: float
    #: Length of each slot, in seconds.
    seconds: float


@leaf
def slot_end(at: float, slots: Slots) -> float:
    """The first slot boundary at or after ``at``, and not before the next slot; in seconds from now."""
    origin = slots.origin
    if at <= origin + TIME_TOLERANCE:
        return origin
    return origin + ceil((at - origin - TIME_TOLERANCE) / slots.seconds) * slots.seconds
