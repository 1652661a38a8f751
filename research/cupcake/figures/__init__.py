"""Figures of Cupcake's evaluation that can be reproduced. Each is a file in this folder and a name here."""

from __future__ import annotations

from research.cupcake.figures import accuracy, optimizer, setups, strawmen, vectors, workers
from research.figure import FigureDefinition

FIGURES: dict[str, FigureDefinition] = {
    figure.name: figure
    for figure in (
        vectors.FIGURE,
        *setups.FIGURES,
        strawmen.FIGURE,
        accuracy.FIGURE,
        optimizer.FIGURE,
        workers.FIGURE,
    )
}

__all__ = ["FIGURES"]
