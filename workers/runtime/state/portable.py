"""Encoding of state values other than tensors, numbers, strings, lists and dicts, so that they are restored
unchanged; values of unsupported types are refused.

A state is read with `weights_only=True`. Values of NumPy and `collections` that it cannot hold are written as
a dict whose key `TYPE` names the type. No value is converted to a similar type: the function gets back the
same types, and so the same arithmetic.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: The key of a dict that stands for a value of another type.
TYPE = "punctual:type"
#: Types without nested values that are stored unchanged.
PLAIN = frozenset({int, float, bool, str, bytes, type(None)})
_READ_AS_THEY_ARE = (complex, bytearray, torch.dtype, torch.device)
_FACTORIES: Mapping[str, Callable[[], Any] | None] = {
    "None": None, "int": int, "float": float, "bool": bool, "str": str,
    "list": list, "tuple": tuple, "dict": dict, "set": set,
}  # fmt: skip


class UnstorableError(ValueError):
    """A value that cannot be stored.

    Attributes:
        path: the keys and indices that lead to it.
        problem: the reason, as a clause that follows its path.
    """

    def __init__(self, path: tuple[Any, ...], problem: str) -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem


def encode(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a value whose type is not in `PLAIN` as dicts, lists, tensors and plain values.

    Raises:
        UnstorableError: it could not be restored unchanged.
    """
    kind = type(value)
    if isinstance(value, Tensor) or kind in _READ_AS_THEY_ARE:
        return value
    if isinstance(value, np.generic | np.ndarray):
        return _encode_numpy(value, path)
    if kind is set:
        return {as_key(element, path) for element in value}
    if kind is frozenset:
        return {TYPE: "frozenset", "values": {as_key(element, path) for element in value}}
    if kind is deque:
        return {TYPE: "deque", "values": list(value), "most": value.maxlen}
    if kind is defaultdict:
        factory = value.default_factory
        names = [name for name, known in _FACTORIES.items() if known is factory]
        if not names:
            raise UnstorableError(path, f"is a defaultdict whose default comes from {factory!r}")
        return {TYPE: "defaultdict", "values": dict(value), "default": names[0]}
    if kind in (Counter, OrderedDict):
        return {TYPE: kind.__name__, "values": dict(value)}
    raise UnstorableError(path, f"is a {kind.__module__}.{kind.__qualname__}".replace("builtins.", ""))


def as_key(key: Any, path: tuple[Any, ...]) -> Any:
    """Return a plain key that equals `key`, a key of a dict or an element of a set.

    Raises:
        UnstorableError: there is none.
    """
    if type(key) in PLAIN:
        return key
    if type(key) is tuple:
        return tuple(as_key(part, path) for part in key)
    # These equal their Python values and have the same hash.
    if isinstance(key, np.bool_ | np.integer | np.float64 | np.str_ | np.bytes_):
        return key.item()
    kind = type(key)
    raise UnstorableError(path, f"has a {kind.__qualname__} as a key or element")


def decode(value: Mapping[str, Any]) -> Any:
    """Return the value that `encode` wrote as a dict with `TYPE`.

    Raises:
        ValueError: `encode` does not write such a dict.
    """
    kind = value[TYPE]
    if kind == "frozenset":
        return frozenset(value["values"])
    if kind == "deque":
        return deque(value["values"], value["most"])
    if kind == "defaultdict":
        return defaultdict(_FACTORIES[value["default"]], value["values"])
    if kind == "Counter":
        return Counter(value["values"])
    if kind == "OrderedDict":
        return OrderedDict(value["values"])
    if kind == "numpy scalar":
        return np.frombuffer(value["values"], _dtype(value))[0]
    if kind == "numpy array":
        content = bytearray(value["values"].numpy())
        array = np.ndarray(value["shape"], _dtype(value), content, order=value["order"])
        return array.copy(order=value["order"])
    raise ValueError(f"a state holds a value of the unknown type {kind!r}")


def _dtype(value: Mapping[str, Any]) -> Any:
    found = np.dtype(value["dtype"])
    if found.hasobject:
        raise ValueError(f"a state holds NumPy values of dtype {found}")
    return found


def _encode_numpy(value: Any, path: tuple[Any, ...]) -> Any:
    if isinstance(value, np.str_ | np.bytes_):
        return value.item()
    if value.dtype.hasobject or value.dtype.fields is not None:
        raise UnstorableError(path, f"is a NumPy array of dtype {value.dtype}")
    if isinstance(value, np.generic):
        return {TYPE: "numpy scalar", "dtype": value.dtype.str, "values": value.tobytes()}
    if type(value) is not np.ndarray:
        raise UnstorableError(path, f"is a {type(value).__module__}.{type(value).__qualname__}")
    by_columns = value.flags.f_contiguous and not value.flags.c_contiguous
    flat = np.ascontiguousarray(value.T if by_columns else value).reshape(-1).view(np.uint8)
    return {
        TYPE: "numpy array",
        "dtype": value.dtype.str,
        "shape": value.shape,
        "order": "F" if by_columns else "C",
        "values": torch.from_numpy(flat if flat.flags.writeable else flat.copy()),
    }
