"""Figures of Zen's evaluation that can be reproduced. Each is a file in this folder and a name here."""

from __future__ import annotations

from research.figure import FigureDefinition
from research.zen.figures import (
    accuracy,
    balance,
    characteristics,
    embeddings,
    formats,
    hashing,
    planning,
    schemes,
    training,
)

FIGURES: dict[str, FigureDefinition] = {
    figure.name: figure
    for figure in (
        characteristics.FIGURE,
        schemes.FIGURE,
        hashing.FIGURE,
        balance.FIGURE,
        formats.FIGURE,
        embeddings.FIGURE,
        training.FIGURE,
        accuracy.FIGURE,
        planning.FIGURE,
    )
}

__all__ = ["FIGURES"]
