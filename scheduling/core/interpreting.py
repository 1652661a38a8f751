"""Kernels as plain Python, for a process that shall answer before the machine code is there.

What a kernel computes does not depend on who runs it: loops in their order, stable sorts, 64-bit numbers.
What differs is at its border. Compiled code takes Python's numbers as numpy's, divides by nought as numpy
does, and gives Python's numbers back; so does a kernel here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_INSIDE: ContextVar[bool] = ContextVar("inside a kernel", default=False)


def interpreted(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The kernel as it stands. Called by another kernel, it is an ordinary function."""

    @functools.wraps(function)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        if _INSIDE.get():
            return function(*arguments, **options)
        token = _INSIDE.set(True)
        try:
            with np.errstate(all="ignore"):
                answer = function(*map(_as_numpy, arguments), **options)
        finally:
            _INSIDE.reset(token)
        return cast(Result, _as_python(answer))

    return run


def _as_numpy(value: Any) -> Any:
    """Python's numbers as numpy's, in bundles too. Arrays and lists stay what they are: they are shared."""
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
    """Numpy's numbers as Python's, in bundles and lists too."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [_as_python(item) for item in value]
    return _each(value, _as_python) if isinstance(value, tuple) else value


def _each(bundle: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The same kind of tuple, named or not."""
    items = [change(item) for item in bundle]
    return type(bundle)(*items) if hasattr(bundle, "_fields") else tuple(items)
