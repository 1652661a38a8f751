"""Stored plans as the rows of jobs and offers keep them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from scheduling.core.question.snapshot import StoredPlan
from scheduling.moments import moment


def plan_to_json(plan: StoredPlan) -> dict[str, Any]:
    """A stored plan as the job's row keeps it."""
    finish = float(plan.finish_at)
    return {
        "start": [float(value) for value in plan.start],
        "end": [_finite(value) for value in plan.end],
        "gpus": [int(value) for value in plan.gpus],
        # Beyond the calendar is never: whoever reads the row need not know what a date can hold.
        "finish_at": finish if moment(finish) is not None else None,
    }


def plan_from_json(stored: Mapping[str, Any] | None) -> StoredPlan | None:
    """The reverse of `plan_to_json`."""
    if not stored:
        return None
    return StoredPlan(
        start=np.array(stored["start"], dtype=np.float64),
        end=np.array([math.inf if value is None else value for value in stored["end"]], dtype=np.float64),
        gpus=np.array(stored["gpus"], dtype=np.int64),
        finish_at=math.inf if stored["finish_at"] is None else float(stored["finish_at"]),
    )


def same_plan(one: StoredPlan | None, other: StoredPlan | None) -> bool:
    """Whether two plans say the same."""
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
