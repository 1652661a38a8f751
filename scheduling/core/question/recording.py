"""Snapshots as JSON, so that any decision can be computed again from its input (rule 1 of the design)."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
import zlib
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from scheduling.core.question.snapshot import Snapshot

#: The types of arrays that a snapshot's fields name.
_ARRAYS = {"IntArray": NDArray[np.int64], "FloatArray": NDArray[np.float64]}


def pack_snapshot(snapshot: Snapshot) -> bytes:
    """The snapshot as compressed JSON. Infinities are strings, since JSON has no number for them."""
    plain = to_json(snapshot, inf_nan_mode="strings", fallback=_listed)
    return zlib.compress(plain, level=6)


def _listed(value: np.ndarray) -> Any:
    return value.tolist()


def unpack_snapshot(packed: bytes) -> Snapshot:
    """The snapshot of `pack_snapshot`'s bytes, equal in every field.

    Raises ValueError where the bytes are not a packed snapshot.
    """
    try:
        plain = json.loads(zlib.decompress(packed))
    except (zlib.error, json.JSONDecodeError) as error:
        raise ValueError("not a packed snapshot") from error
    return typing.cast(Snapshot, _restore(Snapshot, plain))


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
        hints = typing.get_type_hints(kind, localns=_ARRAYS)
        return kind(**{name: _restore(hints[name], item) for name, item in plain.items()})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(plain)
    return float(plain) if kind is float else plain
