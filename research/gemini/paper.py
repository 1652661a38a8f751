"""Gemini as a paper that can be reproduced."""

from __future__ import annotations

from collections.abc import Sequence

from research.figure import Check, Context, FigureReport
from research.gemini.figures import FIGURES
from research.gemini.published import published
from research.gemini.specs import FailureSpec
from research.paper import Paper


def _checks(context: Context, reports: Sequence[FigureReport]) -> Sequence[Check]:
    """Check over all runs that at most one iteration is lost while memory suffices."""
    protected = [
        result
        for spec, result in context.results.by_spec.items()
        if isinstance(spec, FailureSpec) and spec.in_memory and not result.facts["from_durable"]
    ]
    most = max((int(result.facts["most_iterations_lost"]) for result in protected), default=None)
    return [
        Check(
            "At most one iteration is lost while memory suffices",
            None if most is None else most <= 1,
            "not run" if most is None else f"{most} at most, in {len(protected)} runs without a fall-back",
        )
    ]


PAPER = Paper(
    name="gemini",
    title="Gemini, reproduced",
    report="report-gemini.html",
    short="30 days under failures for each number of machines, one draw of lost servers under promises",
    full="ten times as many days, five draws",
    figures=FIGURES,
    published=published,
    checks=_checks,
)
