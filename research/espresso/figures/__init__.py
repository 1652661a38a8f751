"""Figures of Espresso's evaluation that can be reproduced. Each is a file in this folder and a name here."""

from __future__ import annotations

from research.espresso.figures import ablation, arithmetic, plans, selection_time, throughput, upper_bound
from research.figure import FigureDefinition

FIGURES: dict[str, FigureDefinition] = {
    figure.name: figure
    for figure in (
        arithmetic.FIGURE,
        throughput.FIGURE,
        upper_bound.FIGURE,
        selection_time.FIGURE,
        ablation.FIGURE,
        plans.FIGURE,
    )
}

__all__ = ["FIGURES"]
