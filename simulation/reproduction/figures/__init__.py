"""Figures that can be reproduced. A figure is one file in this folder and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from simulation.reproduction.figures import (
    authors,
    fig6a,
    fig6b,
    fig8a,
    fig8b,
    fig9,
    fig10,
    fig11,
    fig12,
    vectors,
)
from simulation.reproduction.figures.base import FigureDefinition

FIGURES: dict[str, FigureDefinition] = {
    each.FIGURE.name: each.FIGURE
    for each in (fig6a, fig6b, fig8a, fig8b, fig9, fig10, fig11, fig12, authors, vectors)
}


def figure_named(name: str, figures: Mapping[str, FigureDefinition] = FIGURES) -> FigureDefinition:
    """The figure of that name, or that is shown with another one. Raises ValueError that lists the names
    there are."""
    for figure in figures.values():
        if name in (figure.name, *figure.also_called):
            return figure
    known = ", ".join(sorted([*figures, *(also for each in figures.values() for also in each.also_called)]))
    raise ValueError(f"there is no figure {name!r}; there are {known}")


__all__ = ["FIGURES", "FigureDefinition", "figure_named"]
