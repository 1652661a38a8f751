"""Espresso as a paper that can be reproduced."""

from __future__ import annotations

from collections.abc import Sequence

from research.espresso.figures import FIGURES
from research.espresso.published import published
from research.espresso.results import ESPRESSO, LEAST, UPPER_BOUND
from research.espresso.specs import SelectionSpec
from research.figure import Check, Context, FigureReport
from research.paper import Paper


def _checks(context: Context, reports: Sequence[FigureReport]) -> Sequence[Check]:
    """Check over all runs that no selection is faster than its bound."""
    found = [
        result.summary for spec, result in context.results.by_spec.items() if isinstance(spec, SelectionSpec)
    ]
    broken = sum(
        each[LEAST] > each[ESPRESSO] + 1e-9 or each[UPPER_BOUND] > each[ESPRESSO] + 1e-9 for each in found
    )
    return [
        Check(
            "No selection is faster than its bounds",
            None if not found else broken == 0,
            f"{broken} of {len(found)} runs" if found else "not run",
        )
    ]


PAPER = Paper(
    name="espresso",
    title="Espresso, reproduced",
    report="report-espresso.html",
    short="six workloads on 8 to 64 GPUs, both platforms, restricted variants",
    full="the same",
    figures=FIGURES,
    published=published,
    checks=_checks,
)
