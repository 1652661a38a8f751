"""Columns of jobs that plans depend on. Each pass reads thousands of rows, too many for models."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic_core import from_json

from scheduling.core.question.snapshot import StoredPlan
from scheduling.services.rows.plan_json import plan_from_json

#: Texts of JSON columns whose values are kept for the next pass.
MOST_KEPT = 5_000


class PlannedJob(NamedTuple):
    """A job as the planner reads it. JSON columns are text, read when needed: one that cannot be read sets
    this job aside, and no other."""

    pk: str
    state: str
    service_class: str
    submitted_at: datetime
    deadline_at: datetime | None
    max_iterations: int
    global_batch_size: int
    project_id: int
    curve_id: int
    iterations_done: int
    iterations_reported_at: datetime | None
    iterations_per_second: float
    promised: bool
    at_risk: bool
    checkpoint_seconds: float
    plan_text: str | None
    memory_text: str
    protection_class_text: str
    asked_protection_text: str

    @property
    def plan(self) -> StoredPlan | None:
        """The stored plan."""
        return None if self.plan_text is None else _plan(self.plan_text)

    @property
    def policy_memory(self) -> Mapping[str, Any]:
        """What the policy stored at its last decision."""
        return _read(self.memory_text)

    @property
    def protection_class(self) -> Mapping[str, Any]:
        """Protection of its state on which a promise may depend."""
        return _read(self.protection_class_text)

    @property
    def asked_protection(self) -> Mapping[str, Any]:
        """Its owner's requests for protection."""
        return _read(self.asked_protection_text)


#: The columns in the order of `PlannedJob`.
COLUMNS = tuple(
    {"memory_text": "policy_memory"}.get(name, name.removesuffix("_text")) for name in PlannedJob._fields
)


@lru_cache(MOST_KEPT)
def _plan(text: str) -> StoredPlan | None:
    return plan_from_json(from_json(text))


@lru_cache(MOST_KEPT)
def _read(text: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = from_json(text)
    return found
