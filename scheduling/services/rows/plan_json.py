"""The JSON form of stored plans in rows of jobs and offers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from scheduling.core.question.snapshot import StoredPlan
from scheduling.moments import moment


def plan_to_json(plan: StoredPlan) -> dict[str, Any]:
    """Return a stored plan in the form of the job's row."""
    finish = float(plan.finish_at)
    return {
        "start": [float(value) for value in plan.start],
        "end": [_finite(value) for value in plan.end],
        "gpus": [int(value) for value in plan.gpus],
        # A time beyond the calendar is stored as null, so that readers need not know the range of dates.
        "finish_at": finish if moment(finish) is not None else None,
    }


def plan_from_json(stored: Mapping[str, Any] | None) -> StoredPlan | None:
    """Return the plan stored by `plan_to_json`."""
    if not stored:
        return None
    return StoredPlan(
        start=np.array(stored["start"], dtype=np.float64),
        end=np.array([math.inf if value is None else value for value in stored["end"]], dtype=np.float64),
        gpus=np.array(stored["gpus"], dtype=np.int64),
        finish_at=math.inf if stored["finish_at"] is None else float(stored["finish_at"]),
    )


def same_plan(one: StoredPlan | None, other: StoredPlan | None) -> bool:
    """Return whether two plans are equal."""
    if one is None or other is None:
        return one is other
    return one is other or (
        one.finish_at == other.finish_at
        and np.array_equal(one.start, other.start)
        and np.array_equal(one.end, other.end)
        and np.array_equal(one.gpus, other.gpus)
    )


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(float(value)) else None
