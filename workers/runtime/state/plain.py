"""Plain values as bytes: numbers, strings, lists and dicts, read back without running any code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch

#: Before values without tensors, which need no archive.
_PLAIN_MARK = b"plain\n"


class _NotPlainError(Exception):
    """Something is more than numbers, strings, lists and dicts."""


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Asked for whatever is not plain."""
        raise _NotPlainError


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Nothing plain needs code."""
        raise pickle.UnpicklingError(f"{module}.{name} in plain values")


def to_bytes(content: Mapping[Any, Any]) -> bytes:
    """Plain values, or with tensors and the like an archive of torch."""
    buffer = io.BytesIO()
    buffer.write(_PLAIN_MARK)
    try:
        _PlainPickler(buffer, protocol=4).dump(dict(content))
    except _NotPlainError:
        buffer = io.BytesIO()
        torch.save(dict(content), buffer)
    return buffer.getvalue()


def from_bytes(content: bytes) -> Any:
    """What `to_bytes` wrote. Raises whatever an unpickler does where it is something else."""
    if content.startswith(_PLAIN_MARK):
        return _PlainUnpickler(io.BytesIO(content[len(_PLAIN_MARK) :])).load()
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
