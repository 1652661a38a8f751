"""Plain values as bytes: numbers, strings, lists and dicts, read back without running any code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch

#: Prefix of values without tensors, which need no archive.
_PLAIN_MARK = b"plain\n"


class _NotPlainError(Exception):
    """A value is not a number, string, list or dict."""


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Refuse the value: pickle calls this only for values that are not plain."""
        raise _NotPlainError


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Refuse to load code."""
        raise pickle.UnpicklingError(f"{module}.{name} in plain values")


def to_bytes(content: Mapping[Any, Any]) -> bytes:
    """Return plain values as a pickle; content with tensors or other types as a torch archive."""
    buffer = io.BytesIO()
    buffer.write(_PLAIN_MARK)
    try:
        _PlainPickler(buffer, protocol=4).dump(dict(content))
    except _NotPlainError:
        buffer = io.BytesIO()
        torch.save(dict(content), buffer)
    return buffer.getvalue()


def from_bytes(content: bytes) -> Any:
    """Return the content written by `to_bytes`. Raise the unpickler's errors for other bytes."""
    if content.startswith(_PLAIN_MARK):
        return _PlainUnpickler(io.BytesIO(content[len(_PLAIN_MARK) :])).load()
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
