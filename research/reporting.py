"""The whole comparison as JSON and as one self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs
from plotly.utils import PlotlyJSONEncoder

import simulation.reports
from research.figure import Check, Context, FigureDefinition, FigureReport
from research.paper import Paper
from research.rows import Row, counts

_OWN_PAGE = Path(__file__).parent / "page"
_SHARED_PAGE = Path(simulation.reports.__file__).parent / "page"


@dataclass(frozen=True)
class Comparison:
    """Content of the report."""

    title: str
    context: Context
    reports: Sequence[FigureReport]
    checks: Sequence[Check]
    left_out: Sequence[str]
    made_at: datetime

    @property
    def rows(self) -> list[Row]:
        """The rows of all figures."""
        return [row for report in self.reports for row in report.rows]

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        results = self.context.results
        return {
            "title": self.title,
            "made_at": self.made_at.isoformat(),
            "version": "full" if self.context.full else "short",
            "interrupted": results.interrupted,
            "published_from": self.context.published.source,
            "runs": len(results.by_spec),
            "left_out": list(self.left_out),
            "counts": counts(self.rows),
            "verdicts": verdicts(self),
            "checks": [check.as_json() for check in self.checks],
            "figures": [
                {
                    "name": report.name,
                    "title": report.title,
                    "made": report.made,
                    "notes": list(report.notes),
                    "checks": [check.as_json() for check in report.checks],
                    "rows": [row.as_json() for row in report.rows],
                    "tables": [table.as_json() for table in report.tables],
                }
                for report in self.reports
            ],
            "failed": [
                {"run": spec.described(), "why": why} for spec, why in self.context.results.failed.items()
            ],
        }


def compare(
    paper: Paper, context: Context, figures: Sequence[FigureDefinition], left_out: Sequence[str] = ()
) -> Comparison:
    """Return the report of a paper's figures from the available results. ``left_out``: sentences on what was
    not run and why."""
    reports = [figure.report(context) for figure in figures]
    checks = paper.checks(context, reports)
    return Comparison(paper.title, context, reports, checks, left_out, datetime.now(UTC))


def verdicts(comparison: Comparison) -> dict[str, int]:
    """Count the checks that are met, not met, and unknown."""
    met = [
        check.met
        for check in (*comparison.checks, *(one for each in comparison.reports for one in each.checks))
    ]
    return {"met": met.count(True), "not_met": met.count(False), "not_known": met.count(None)}


def write_json(comparison: Comparison, path: Path) -> None:
    """Write the comparison as JSON. Raises OSError if the file cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(comparison.as_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the comparison as a page. Raises OSError if the file cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(comparison), encoding="utf-8")


def page(comparison: Comparison) -> str:
    """Return the page as text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_OWN_PAGE), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    figures: dict[str, Any] = {}
    sections = [_section(report, figures) for report in comparison.reports]
    style = (_SHARED_PAGE / "report.css").read_text() + (_OWN_PAGE / "reproduction.css").read_text()
    return environment.get_template("reproduction.html.j2").render(
        title=comparison.title,
        comparison=comparison,
        results=comparison.context.results,
        counts=counts(comparison.rows),
        verdicts=verdicts(comparison),
        sections=sections,
        checks=[("All figures", check) for check in comparison.checks]
        + [(report.title, check) for report in comparison.reports for check in report.checks],
        style=Markup(style),
        script=Markup((_SHARED_PAGE / "report.js").read_text()),
        plotlyjs=Markup(get_plotlyjs()),
        figures_json=_embedded(figures),
    )


def _section(report: FigureReport, figures: dict[str, Any]) -> dict[str, Any]:
    cards = []
    for drawing in report.drawings:
        if drawing.figure is not None:
            figures[drawing.name] = drawing.as_json(report.made)
        height = drawing.figure.layout.height if drawing.figure is not None else None
        cards.append({"key": drawing.name, "drawing": drawing, "height": height or 300})
    return {
        "report": report,
        "cards": cards,
        "causes": _causes(report.rows),
        "unexplained": [row.name for row in report.rows if row.beyond_band and not row.explanations],
    }


def _causes(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Group rows by cause, so that each cause is explained once."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        for each in row.explanations:
            entry = found.setdefault(each.cause, {"cause": each.cause, "fact": each.fact, "cells": {}})
            entry["cells"].setdefault(each.evidence, []).append(row.name)
    return list(found.values())


def _embedded(value: Any) -> Markup:
    """Return JSON for a script element, escaped so that it cannot end the element or open a comment."""
    text = json.dumps(value, cls=PlotlyJSONEncoder, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
