"""What an operator may choose, as fields of a dataclass: one line says what a choice is, its bounds and its
words.

Whatever offers choices (the simulator's command line, its reports, reproduced figures) reads them from the
fields, so that a new one is a line in its dataclass and nowhere else.
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
    """One choice. ``name``: its field. ``usual``: what it is where nobody chose.

    ``meaning``: what it is, in a few words. ``offered_as``: what operators call it, with underscores.
    ``kind``: the type of its values. ``words``: what a truth value is called, no first; the words that may be
    said, for text. ``least`` and ``most``: bounds of a number; ``above_least``: it must be larger.
    """

    name: str
    usual: Any
    meaning: str
    offered_as: str
    kind: type
    words: tuple[str, ...]
    least: float
    most: float
    above_least: bool

    def read(self, value: Any) -> Any:
        """A word or number that was given, as the field has it. Raises ValueError for one out of bounds: what
        would be right."""
        if self.kind is bool:
            return value == self.words[1] if isinstance(value, str) else bool(value)
        if self.kind in (int, float) and not self._within(value):
            raise ValueError(f"must be {self._bounds()}, not {value:g}")
        return self.kind(value)

    def said(self, value: Any) -> str:
        """A value of the field as it is given."""
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
    """A field of a dataclass that an operator may choose, as `Option` tells. ``kind`` is that of the usual
    value unless told; words of a truth value are ``off`` and ``on``, those of an enumeration its own."""
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
    """The choices that a dataclass offers, by what operators call them, in the order of its fields."""
    found: dict[str, Option] = {}
    for one in fields(dataclass_type):
        told: Option | None = one.metadata.get(_OPTION)
        if told is not None:
            offered_as = told.offered_as or one.name
            found[offered_as] = replace(told, name=one.name, offered_as=offered_as)
    return found


def chosen(dataclass_type: type, source: object) -> dict[str, Any]:
    """The values of a dataclass's fields as something that has them all holds them."""
    return {one.name: getattr(source, one.name) for one in fields(dataclass_type)}
