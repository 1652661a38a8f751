"""The key under which a scaling curve is known (contracts 1): what changes speed is part of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def data_digest(data: Sequence[Mapping[str, Any]]) -> str:
    """Digest of declared data by name and place; empty for none."""
    return _digest(sorted(json.dumps(dict(item), sort_keys=True) for item in data)) if data else ""


def curve_key(
    *,
    function_digest: str,
    entry: str,
    data_digest: str,
    gpu_kind: str,
    hyperparameters: Mapping[str, Any],
    speed_neutral: Iterable[str],
    plan_family: str,
) -> str:
    """Digest of function, data, kind of GPU, every hyperparameter that may change speed or memory, and the
    family of the runtime plans."""
    neutral = set(speed_neutral)
    counted = {name: value for name, value in hyperparameters.items() if name not in neutral}
    measured = _digest([function_digest, entry, data_digest, gpu_kind, counted])
    return _digest([measured, plan_family])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
