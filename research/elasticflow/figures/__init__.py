"""Figures that can be reproduced. Each is one file in this folder and one line here."""

from __future__ import annotations

from research.elasticflow.figures import (
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
from research.figure import FigureDefinition

FIGURES: dict[str, FigureDefinition] = {
    each.FIGURE.name: each.FIGURE
    for each in (fig6a, fig6b, fig8a, fig8b, fig9, fig10, fig11, fig12, authors, vectors)
}


__all__ = ["FIGURES"]
