"""Kernels run as plain Python, for a process that must answer before the machine code is compiled.

Compiled and interpreted kernels compute the same: loops keep their order, sorts are stable, numbers have 64
bits. They differ only where Python calls them. Compiled code converts Python's numbers to numpy's, divides by
zero as numpy does, and returns Python's numbers; `interpreted` does the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

observers: list[Callable[[Callable[..., Any], tuple[Any, ...]], None]] = []
"""Receive each interpreted kernel that Python calls, with its arguments."""
_INSIDE: ContextVar[bool] = ContextVar("inside a kernel", default=False)


def interpreted(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The kernel as an interpreted function. Kernels that it calls are ordinary functions."""

    @functools.wraps(function)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        if _INSIDE.get():
            return function(*arguments, **options)
        for observer in observers:
            observer(function, arguments)
        token = _INSIDE.set(True)
        try:
            with np.errstate(all="ignore"):
                answer = function(*map(_as_numpy, arguments), **options)
        finally:
            _INSIDE.reset(token)
        return cast(Result, _as_python(answer))

    return run


def _as_numpy(value: Any) -> Any:
    """Convert Python's numbers to numpy's, also within tuples. Arrays and lists are not copied: callers share
    them."""
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, np.generic):
        return value
    if isinstance(value, int):
        return np.int64(value)
    if isinstance(value, float):
        return np.float64(value)
    return _each(value, _as_numpy) if isinstance(value, tuple) else value


def _as_python(value: Any) -> Any:
    """Convert numpy's numbers to Python's, also within tuples and lists."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [_as_python(item) for item in value]
    return _each(value, _as_python) if isinstance(value, tuple) else value


def _each(bundle: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Apply ``change`` to each item; the result is a tuple of the same type, named or not."""
    items = [change(item) for item in bundle]
    return type(bundle)(*items) if hasattr(bundle, "_fields") else tuple(items)
