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
    measured = function_key(
        function_digest=function_digest,
        entry=entry,
        data_digest=data_digest,
        gpu_kind=gpu_kind,
        hyperparameters=hyperparameters,
        speed_neutral=speed_neutral,
    )
    return key_of_family(measured, plan_family)


def key_of_family(function: str, plan_family: str) -> str:
    """The key of a function's curve (`function_key`) under plans of a family."""
    return _digest([function, plan_family])


def function_key(
    *,
    function_digest: str,
    entry: str,
    data_digest: str,
    gpu_kind: str,
    hyperparameters: Mapping[str, Any],
    speed_neutral: Iterable[str],
) -> str:
    """The same without the family: what gradients are like depends on no plan."""
    neutral = set(speed_neutral)
    counted = {name: value for name, value in hyperparameters.items() if name not in neutral}
    return _digest([function_digest, entry, data_digest, gpu_kind, counted])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
