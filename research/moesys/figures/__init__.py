"""Figures of MoESys's evaluation. Each is a file in this folder and a name here."""

from __future__ import annotations

from research.figure import FigureDefinition
from research.moesys.figures import all_to_all, cross, elastic, embedding, inference, sizes, training

FIGURES: dict[str, FigureDefinition] = {
    figure.name: figure
    for figure in (
        sizes.FIGURE,
        training.FIGURE,
        elastic.FIGURE,
        all_to_all.FIGURE,
        embedding.FIGURE,
        cross.FIGURE,
        inference.FIGURE,
    )
}

__all__ = ["FIGURES"]
