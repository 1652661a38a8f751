"""What can be reproduced of one paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from research.figure import Check, Context, FigureDefinition, FigureReport, Published


@dataclass(frozen=True)
class Paper:
    """One paper: its figures by name, its published values, and what should hold over all of them.

    ``name``: what the command calls it. ``report``: the page's usual file. ``short`` and ``full``: what the
    two versions run, for the command's help. ``without_traces``: what else changes where the public
    traces are not here.
    """

    name: str
    title: str
    report: str
    short: str
    full: str
    figures: Mapping[str, FigureDefinition]
    published: Callable[[], Published]
    checks: Callable[[Context, Sequence[FigureReport]], Sequence[Check]]
    without_traces: str = ""

    def figure_named(self, name: str) -> FigureDefinition:
        """The figure of that name, or that is shown with another one. Raises ValueError that lists the names
        there are."""
        for figure in self.figures.values():
            if name in (figure.name, *figure.also_called):
                return figure
        also = (one for figure in self.figures.values() for one in figure.also_called)
        known = ", ".join(sorted([*self.figures, *also]))
        raise ValueError(f"there is no figure {name!r}; there are {known}")
