"""Shortcuts within numba for a process that compiles a lot and does nothing else.

A tenth of the time that numba takes in Python goes into events that nobody listens to, into reading settings
and into listing the variables of statements. What it compiles stays the same.
"""

from __future__ import annotations

from typing import Any

from numba.core import event, ir, targetconfig

# Without types: numba's stubs take its methods for constants.
_STATEMENT: Any = ir.Inst
_SETTINGS: Any = targetconfig.TargetConfig
_WITHOUT_VARIABLES = {ir.Loc, str, int, float, bool, type(None)}


def take_shortcuts() -> None:
    """Replace these functions of numba in this process."""
    event.broadcast = _broadcast_nothing
    _SETTINGS.values = _values
    _STATEMENT._rec_list_vars = _list_variables


def _broadcast_nothing(_: Any) -> None:
    pass


def _values(self: Any) -> dict[str, Any]:
    get = self._values.get
    return {name: get(name, option.default) for name, option in self.options.items()}


def _list_variables(self: Any, value: Any) -> list[Any]:
    if isinstance(value, ir.Var):
        return [value]
    if isinstance(value, _STATEMENT):
        return list(value.list_vars())
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [
        variable
        for item in value
        if type(item) not in _WITHOUT_VARIABLES
        for variable in self._rec_list_vars(item)
    ]
