"""The reproducible parts of one paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from research.figure import Check, Context, FigureDefinition, FigureReport, Published


@dataclass(frozen=True)
class Paper:
    """One paper: its figures by name, its published values, and checks over all of them.

    ``name``: its name in the command. ``report``: the page's default file. ``short`` and ``full``: what the
    two versions run, for the command's help. ``without_traces``: what else changes without the public
    traces.
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
        """Return the figure of that name, also one shown with another. Raises ValueError, which lists the
        known names."""
        for figure in self.figures.values():
            if name in (figure.name, *figure.also_called):
                return figure
        also = (one for figure in self.figures.values() for one in figure.also_called)
        known = ", ".join(sorted([*self.figures, *also]))
        raise ValueError(f"there is no figure {name!r}; there are {known}")
