"""Colours with a meaning: uses, outcomes and jobs. Colours of states are in the choices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

PROMISED = "#3b6fd4"
SOFT = "#8fb4ee"
BEST_EFFORT = "#4fa58c"
PROFILING = "#8e6cc9"
CHANGING = "#e2a33c"
UNAVAILABLE = "#c25450"
#: Half transparent, so that it recedes on light and on dark backgrounds.
IDLE = "rgba(128, 140, 156, 0.22)"
BUSY_ELSEWHERE = "#8a94a3"

GOOD = "#2e8b57"
WARNING = "#e08e1b"
BAD = "#c94a44"
NEUTRAL = "#8a94a3"
DECLINED = "#8d6e63"

#: Distinguishable by most people, also side by side; white text is readable on each.
JOB_PALETTE = (
    "#3b6fd4", "#c65d3a", "#3f8f6b", "#8a5bb8", "#b0792a", "#2f8fa8",
    "#b84a78", "#5d7f2c", "#5763b8", "#a34f4f", "#3d7a8c", "#7a6a3a",
)  # fmt: skip


def job_colours(job_ids: Iterable[str]) -> dict[str, str]:
    """Return a colour for each job, derived from its id.

    A job therefore has the same colour on every page and after every reload. Only if two jobs shown together
    would share a colour, the one with the later id gets the next free one.
    """
    colours: dict[str, str] = {}
    taken: set[int] = set()
    for job_id in sorted(set(job_ids)):
        first = int(hashlib.sha256(job_id.encode()).hexdigest(), 16) % len(JOB_PALETTE)
        free = [
            place
            for step in range(len(JOB_PALETTE))
            if (place := (first + step) % len(JOB_PALETTE)) not in taken
        ]
        place = free[0] if free else first
        taken.add(place)
        colours[job_id] = JOB_PALETTE[place]
    return colours
