"""Figures of Gemini's evaluation that can be reproduced. Each is a file in this folder and a name here."""

from __future__ import annotations

from research.figure import FigureDefinition
from research.gemini.figures import (
    effective_time,
    frequency,
    idle_spans,
    interference,
    probability,
    promises,
    recovery_time,
    sources,
)

FIGURES: dict[str, FigureDefinition] = {
    figure.name: figure
    for figure in (
        probability.FIGURE,
        sources.FIGURE,
        idle_spans.FIGURE,
        interference.FIGURE,
        recovery_time.FIGURE,
        frequency.FIGURE,
        effective_time.FIGURE,
        promises.FIGURE,
    )
}

__all__ = ["FIGURES"]
