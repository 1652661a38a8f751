"""Zen as a paper that can be reproduced."""

from __future__ import annotations

from collections.abc import Sequence

from research.figure import Check, Context, FigureReport
from research.paper import Paper
from research.zen.figures import FIGURES
from research.zen.published import published


def _checks(context: Context, reports: Sequence[FigureReport]) -> Sequence[Check]:
    """Check over all figures that few values were fitted compared with those that were not."""
    rows = [row for report in reports for row in report.rows if row.published is not None]
    fitted = sum(not row.by_published_rules for row in rows)
    return [
        Check(
            "Fewer values were fitted than were found",
            None if not rows else fitted < len(rows) - fitted,
            f"{fitted} fitted, {len(rows) - fitted} found",
        )
    ]


PAPER = Paper(
    name="zen",
    title="Zen, reproduced",
    report="report-zen.html",
    short="one seed of the training that loses gradients",
    full="three seeds, four times the steps",
    figures=FIGURES,
    published=published,
    checks=_checks,
)
