"""Keys of scaling curves, which cover everything that changes speed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from punctual.protocol.hyperparameters import SPEED_NEUTRAL
from scheduling.core.runtime_plans.expert_families import UNPLANNED


def data_digest(data: Sequence[Mapping[str, Any]]) -> str:
    """Return the digest of declared data by name and place; empty for none."""
    return _digest(sorted(json.dumps(dict(item), sort_keys=True) for item in data)) if data else ""


def key_of_family(function: str, plan_family: str) -> str:
    """Return the key of a function's curve (`function_key_on`) under plans of a family."""
    return _digest([function, plan_family])


def keys_without_plan(function: str) -> list[str]:
    """Return the possible keys of a function's curve without gradient plans; it has one of these."""
    return [key_of_family(function, family) for family in UNPLANNED]


class Trains(Protocol):
    """Common fields of a job and a request: a function, its data and hyperparameters."""

    @property
    def function_version(self) -> Any: ...
    @property
    def data(self) -> Any: ...
    @property
    def hyperparameters(self) -> Any: ...


def function_key_on(job: Trains, kind: str) -> str:
    """Return the digest of a job's or a request's function with its data, the kind of GPU, and every
    hyperparameter that may change speed or memory. The plan family is not part of it, since gradients do
    not depend on plans."""
    version = job.function_version
    neutral = {*version.speed_neutral, *SPEED_NEUTRAL}
    counted = {name: value for name, value in job.hyperparameters.items() if name not in neutral}
    return _digest([version.bundle_id, version.entry, data_digest(job.data), kind, counted])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
