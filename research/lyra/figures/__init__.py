"""Figures of Lyra's evaluation that can be reproduced. Each is a file in this folder, or a line in
`sensitivity.py`, and a name here."""

from __future__ import annotations

from research.figure import FigureDefinition
from research.lyra.figures import (
    examples,
    fungible,
    public_traces,
    queuing,
    quiet_inference,
    reclaiming,
    sensitivity,
    table35,
    testbed,
)

FIGURES: dict[str, FigureDefinition] = {
    figure.name: figure
    for figure in (
        table35.FIGURE,
        reclaiming.FIGURE,
        queuing.FIGURE,
        quiet_inference.FIGURE,
        *sensitivity.FIGURES,
        fungible.FIGURE,
        testbed.FIGURE,
        public_traces.FIGURE,
        examples.FIGURE,
    )
}

__all__ = ["FIGURES"]
