"""MoESys as a paper that can be reproduced."""

from __future__ import annotations

from collections.abc import Sequence

from research.figure import Check, Context, FigureReport
from research.moesys.figures import FIGURES
from research.moesys.published import published
from research.paper import Paper


def _checks(context: Context, reports: Sequence[FigureReport]) -> Sequence[Check]:
    """Check that fitted laws are near the values they are fitted to. The all-to-all, with its rounded spine,
    has its own checks."""
    errors = [
        abs(row.ours / row.published - 1.0)
        for report in reports
        for row in report.rows
        if not row.by_published_rules and report.name != "all_to_all" and row.ours and row.published
    ]
    return [
        Check(
            "Fitted laws lie within 2 % of what they are fitted to",
            max(errors) <= 0.02 if errors else None,
            f"{len(errors)} values, at most {max(errors, default=0.0):.1%}",
        )
    ]


PAPER = Paper(
    name="moesys",
    title="MoESys, reproduced",
    report="report-moesys.html",
    short="all figures",
    full="the same",
    figures=FIGURES,
    published=published,
    checks=_checks,
)
