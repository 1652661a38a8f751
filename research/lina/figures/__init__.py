"""Figures of Lina's evaluation. Each is a file in this folder and a name here."""

from __future__ import annotations

from research.figure import FigureDefinition
from research.lina.figures import arithmetic, inference, interference, packing, paths, timeline, training

FIGURES: dict[str, FigureDefinition] = {
    figure.name: figure
    for figure in (
        timeline.FIGURE,
        training.FIGURE,
        interference.FIGURE,
        packing.FIGURE,
        inference.FIGURE,
        paths.FIGURE,
        arithmetic.FIGURE,
    )
}

__all__ = ["FIGURES"]
