"""When GPUs may change hands: the one rule of the live planner and of the simulator (contracts 4).

A slot keeps two reallocations apart, so that jobs are not moved about all the time. What a plan itself has
fixed happens when it is planned, within a slot too, as promises rest on it. An answer that moves nobody was
no reallocation: it begins no slot. Times are in seconds on any one axis; ``-inf`` and ``inf`` stand for never
yet and never.
"""

from __future__ import annotations

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
