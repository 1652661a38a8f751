"""Operator choices as fields of a dataclass, each with its meaning, bounds and words on one line.

The simulator's command line, its reports and the reproduced figures read the choices from these fields. A new
choice needs one line in its dataclass and none elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from math import inf
from typing import Any

_OPTION = "option"


@dataclass(frozen=True, slots=True)
class Option:
    """One choice of the operator."""

    #: Name of the field.
    name: str
    #: The default value.
    usual: Any
    #: What the choice decides, in a few words.
    meaning: str
    #: The name that operators use, with underscores.
    offered_as: str
    #: Type of the value.
    kind: type
    #: For a boolean, the words for false and true; for text, the allowed words.
    words: tuple[str, ...]
    #: Lower bound of a number.
    least: float
    #: Upper bound of a number.
    most: float
    #: Whether a number must be greater than ``least``.
    above_least: bool

    def read(self, value: Any) -> Any:
        """Convert a given word or number to the field's value. Raises ValueError for a value out of bounds;
        the message says what is allowed."""
        if self.kind is bool:
            return value == self.words[1] if isinstance(value, str) else bool(value)
        if self.kind in (int, float) and not self._within(value):
            raise ValueError(f"must be {self._bounds()}, not {value:g}")
        return self.kind(value)

    def said(self, value: Any) -> str:
        """The word or number that stands for a value of the field."""
        if self.kind is bool:
            return self.words[bool(value)]
        return f"{value:g}" if isinstance(value, (int, float)) else str(value)

    def _within(self, value: float) -> bool:
        above = value > self.least if self.above_least else value >= self.least
        return above and value <= self.most and value < inf

    def _bounds(self) -> str:
        if self.most < inf:
            return f"from {self.least:g} to {self.most:g}"
        return f"{'above' if self.above_least else 'at least'} {self.least:g}"


def option(
    usual: Any,
    meaning: str,
    *,
    offered_as: str = "",
    kind: type | None = None,
    words: tuple[str, ...] = (),
    least: float = 0.0,
    most: float = inf,
    above_least: bool = False,
) -> Any:
    """A dataclass field that an operator may choose; the arguments are the fields of `Option`.

    ``kind`` defaults to the type of ``usual``. The default words are ``off`` and ``on`` for a boolean and the
    members of an enumeration.
    """
    kind = kind or type(usual)
    if kind is bool:
        words = words or ("off", "on")
    elif issubclass(kind, StrEnum):
        words = tuple(one.value for one in kind)
    told = Option("", usual, meaning, offered_as, kind, words, least, most, above_least)
    return field(default=usual, metadata={_OPTION: told})


def share(usual: float | None, meaning: str, **told: Any) -> Any:
    """An `option` from 0 to 1."""
    return option(usual, meaning, kind=float, most=1.0, **told)


def options_of(dataclass_type: type) -> Mapping[str, Option]:
    """The choices that a dataclass offers, keyed by the operators' names, in the order of its fields."""
    found: dict[str, Option] = {}
    for one in fields(dataclass_type):
        told: Option | None = one.metadata.get(_OPTION)
        if told is not None:
            offered_as = told.offered_as or one.name
            found[offered_as] = replace(told, name=one.name, offered_as=offered_as)
    return found


def chosen(dataclass_type: type, source: object) -> dict[str, Any]:
    """The values of a dataclass's fields, read from an object that has attributes of the same names."""
    return {one.name: getattr(source, one.name) for one in fields(dataclass_type)}
