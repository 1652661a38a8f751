"""When GPUs may be reallocated: one rule for the live planner and the simulator.

Two reallocations are at least a slot apart, so that jobs do not move all the time. A change that a stored
plan contains happens at its time, also within a slot, because promises rest on it. A decision that moves no
job begins no slot. Times are seconds on any one axis; ``-inf`` means never yet, ``inf`` never.
"""

from __future__ import annotations

from math import inf

from scheduling.core.plans.slots import Slots, slot_end
from scheduling.core.question.arrays import TIME_TOLERANCE


def changes_allowed_from(slot_ends_at: float, wake_at: float) -> float:
    """The earliest time of the next reallocation. ``wake_at``: when the last decision asked to be
    repeated."""
    return min(slot_ends_at, wake_at)


def changes_allowed(now: float, slot_ends_at: float, wake_at: float) -> bool:
    """Whether a decision at ``now`` may reallocate GPUs; otherwise all jobs keep theirs until
    `changes_allowed_from`."""
    return now >= changes_allowed_from(slot_ends_at, wake_at) - TIME_TOLERANCE


def slot_end_after(slot_ends_at: float, now: float, slot_seconds: float, *, moved: bool) -> float:
    """The end of the slot after a decision at ``now``. ``moved``: whether the decision changed any job's
    GPUs."""
    return now + slot_seconds if moved else slot_ends_at


def looked_at_again(now: float, slot_ends_at: float, wake_at: float) -> float:
    """When to decide again because facts changed at ``now``: as soon as GPUs may be reallocated."""
    return max(now, changes_allowed_from(slot_ends_at, wake_at))


def given_out_again(finish_at: float, now: float, slot_seconds: float) -> float:
    """When the GPUs of a job that ends at ``finish_at`` are reallocated: at the end of its slot.

    Slots are counted from ``now``. Infinity for a job that does not end.
    """
    if finish_at == inf:
        return inf
    return max(now + slot_seconds, float(slot_end(finish_at, Slots(now, slot_seconds))))


def tick_from(at: float, slot_seconds: float) -> float:
    """The first tick at or after ``at`` of a scheduler that decides at fixed times, once a slot (Lyra)."""
    return at if at == inf else float(slot_end(at, Slots(0.0, slot_seconds)))
