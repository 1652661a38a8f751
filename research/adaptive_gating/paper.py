"""Adaptive gating as a paper that can be reproduced."""

from __future__ import annotations

from collections.abc import Sequence

from research.adaptive_gating.figures import FIGURES
from research.adaptive_gating.published import published
from research.figure import Check, Context, FigureReport
from research.paper import Paper


def _checks(context: Context, reports: Sequence[FigureReport]) -> Sequence[Check]:
    """Return no check: each figure checks its own."""
    return ()


PAPER = Paper(
    name="adaptive_gating",
    title="Adaptive gating, reproduced",
    report="report-adaptive-gating.html",
    short="one draw of samples for each task",
    full="ten draws of samples",
    figures=FIGURES,
    published=published,
    checks=_checks,
)
