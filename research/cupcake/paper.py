"""Cupcake as a paper that can be reproduced."""

from __future__ import annotations

from collections.abc import Sequence

from research.cupcake.figures import FIGURES
from research.cupcake.published import published
from research.figure import Check, Context, FigureReport
from research.paper import Paper


def _checks(context: Context, reports: Sequence[FigureReport]) -> Sequence[Check]:
    """Return no check: each figure checks its own."""
    return ()


PAPER = Paper(
    name="cupcake",
    title="Cupcake, reproduced",
    report="report-cupcake.html",
    short="100 random models against brute force; searches given up after 20,000 partial partitions",
    full="1,000 random models; searches go on for 2,000,000",
    figures=FIGURES,
    published=published,
    checks=_checks,
)
