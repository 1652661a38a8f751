"""Measured age of the newest point in memory while all copies exist. Promises of the function's later jobs
depend on it (decision 0028).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from recovery.costs.protection_class import point_age_iterations
from scheduling.choices import ProtectionState
from scheduling.models import Generation, Job, ScalingCurve
from scheduling.selectors.recovery.memory_states import memory_state

#: Weight of a new figure that is smaller than the known one.
FORGETTING = 0.1


def remembered(known: float | None, seen: float) -> float:
    """Return the new estimate: a larger figure counts at once, a smaller one gradually."""
    if known is None or seen >= known:
        return seen
    return known - (known - seen) * FORGETTING


def note_point_age(job: Job, generation: Generation, event: Mapping[str, Any], now: datetime) -> None:
    """Store in the curve how old points get by rank 0's measured plan, at least the age of those in the
    stores. Nothing is stored while a copy is missing or before iterations with copies were measured.
    """
    if generation.curve is None or event["with_seconds"] is None:
        return
    state = memory_state(job)
    if state is None or state.in_memory is None or state.protection != ProtectionState.FULL:
        return
    iteration_seconds = max(event["iteration_seconds"], event["with_seconds"])
    if not iteration_seconds > 0.0:
        return
    planned = point_age_iterations(
        event["every"], event["iterations"], iteration_seconds, event["copy_seconds"],
        event["extension_seconds"],
    )  # fmt: skip
    held = (state.in_memory.age_seconds(now) or 0.0) / iteration_seconds
    curve = ScalingCurve.objects.select_for_update().get(pk=generation.curve.pk)
    curve.point_iterations = remembered(curve.point_iterations, max(planned, held))
    curve.save(update_fields=["point_iterations"])
