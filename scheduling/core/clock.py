"""When GPUs may change hands: the one rule of the live planner and of the simulator (contracts 4).

A slot keeps two reallocations apart, so that jobs are not moved about all the time. What a plan itself has
fixed happens when it is planned, within a slot too, as promises rest on it. An answer that moves nobody was
no reallocation: it begins no slot. Times are in seconds on any one axis; ``-inf`` and ``inf`` stand for never
yet and never.
"""

from __future__ import annotations

from math import inf

from scheduling.core.plans.slots import Slots, slot_end
from scheduling.core.question.arrays import TIME_TOLERANCE


def changes_allowed_from(slot_ends_at: float, wake_at: float) -> float:
    """From when on GPUs may change hands. ``wake_at``: when the last plan asks to be looked at again."""
    return min(slot_ends_at, wake_at)


def changes_allowed(now: float, slot_ends_at: float, wake_at: float) -> bool:
    """Whether a decision at ``now`` may reallocate; else everybody keeps their GPUs until
    `changes_allowed_from`."""
    return now >= changes_allowed_from(slot_ends_at, wake_at) - TIME_TOLERANCE


def slot_end_after(slot_ends_at: float, now: float, slot_seconds: float, *, moved: bool) -> float:
    """When the slot ends after a reallocation at ``now``. ``moved``: whether it changed what anybody
    holds."""
    return now + slot_seconds if moved else slot_ends_at


def looked_at_again(now: float, slot_ends_at: float, wake_at: float) -> float:
    """When a plan is looked at again because facts changed at ``now``: as soon as GPUs may change hands."""
    return max(now, changes_allowed_from(slot_ends_at, wake_at))


def given_out_again(finish_at: float, now: float, slot_seconds: float) -> float:
    """When the GPUs of a job that ends at ``finish_at`` are given out again: at the end of its slot, by the
    slots that begin at ``now``. Never where it does not end."""
    if finish_at == inf:
        return inf
    return max(now + slot_seconds, float(slot_end(finish_at, Slots(now, slot_seconds))))


def tick_from(at: float, slot_seconds: float) -> float:
    """The first tick at or after ``at`` of a scheduler that looks once a slot, at fixed times (Lyra; spec
    2.1)."""
    return at if at == inf else float(slot_end(at, Slots(0.0, slot_seconds)))
