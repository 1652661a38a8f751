"""Lina as a paper that can be reproduced."""

from __future__ import annotations

from collections.abc import Sequence

from research.figure import Check, Context, FigureReport
from research.lina.figures import FIGURES
from research.lina.published import published
from research.paper import Paper


def _checks(context: Context, reports: Sequence[FigureReport]) -> Sequence[Check]:
    """Return no check: each figure checks its own."""
    return ()


PAPER = Paper(
    name="lina",
    title="Lina, reproduced",
    report="report-lina.html",
    short="training; 40 batches for each way of serving",
    full="720 batches for each way",
    figures=FIGURES,
    published=published,
    checks=_checks,
)
