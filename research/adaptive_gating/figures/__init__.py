"""Figures of adaptive gating's evaluation. Each is a file in this folder and a name here."""

from __future__ import annotations

from research.adaptive_gating.figures import curriculum, flops, layer, thresholds, time
from research.figure import FigureDefinition

FIGURES: dict[str, FigureDefinition] = {
    figure.name: figure
    for figure in (layer.FIGURE, flops.FIGURE, time.FIGURE, thresholds.FIGURE, curriculum.FIGURE)
}

__all__ = ["FIGURES"]
