"""Snapshots as JSON, so that any decision can be replayed from what it was computed from (rule 1 of the
design)."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
import zlib
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np

from scheduling.core.question.snapshot import ScalingCurve, Snapshot


def pack_snapshot(snapshot: Snapshot) -> bytes:
    """The snapshot as compressed JSON. Infinity is written as the string ``"inf"``."""
    plain = _plain(snapshot, {})
    return zlib.compress(json.dumps(plain, separators=(",", ":"), allow_nan=False).encode(), level=6)


def unpack_snapshot(packed: bytes) -> Snapshot:
    """The reverse of `pack_snapshot`: equal in every field.

    Raises:
        ValueError: the bytes are not a packed snapshot.
    """
    try:
        plain = json.loads(zlib.decompress(packed))
    except (zlib.error, json.JSONDecodeError) as error:
        raise ValueError("not a packed snapshot") from error
    return typing.cast(Snapshot, _restore(Snapshot, plain))


def _plain(value: Any, shared: dict[int, Any]) -> Any:
    """``shared``: what was made of curves, which many jobs have together, by identity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _infinite(value)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, np.ndarray):
        items = value.tolist()
        return items if np.isfinite(value).all() else [_plain(item, shared) for item in items]
    if isinstance(value, (tuple, list)):
        return [_plain(item, shared) for item in value]
    if isinstance(value, ScalingCurve):
        if id(value) not in shared:
            shared[id(value)] = _fields(value, shared)
        return shared[id(value)]
    return _fields(value, shared) if dataclasses.is_dataclass(value) else value


def _fields(value: Any, shared: dict[int, Any]) -> dict[str, Any]:
    return {name: _plain(getattr(value, name), shared) for name in _names(value.__class__)}


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _infinite(value: float) -> Any:
    return value if math.isnan(value) else "inf" if value > 0 else "-inf"


def _restore(kind: Any, plain: Any) -> Any:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if plain is None:
        return None
    if origin in (types.UnionType, typing.Union):
        return _restore(next(argument for argument in arguments if argument is not type(None)), plain)
    if origin is np.ndarray:
        scalar = typing.get_args(arguments[1])[0]
        return np.array([float(item) if isinstance(item, str) else item for item in plain], dtype=scalar)
    if origin is tuple:
        return tuple(_restore(arguments[0], item) for item in plain)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _restore(hints[name], item) for name, item in plain.items()})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(plain)
    return float(plain) if kind is float else plain
