"""One run, or several side by side, as one self-contained HTML page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jinja2
import plotly
from markupsafe import Markup
from plotly.offline import get_plotlyjs
from plotly.utils import PlotlyJSONEncoder

from scheduling.core.question.quantities import duration_text
from simulation.outcome import RunOutcome
from simulation.reports.comparison import comparison_drawings, differences, made_how_all, metric_table
from simulation.reports.figures import drawings
from simulation.reports.measures import simulated_seconds
from simulation.reports.metrics import METRICS, shown, value_of
from simulation.reports.runs import Run, runs_of
from simulation.reports.steps import MOST_STEPS
from simulation.reports.style import Drawing, made_how

_PAGE = Path(__file__).parent / "page"
#: The figures at the head of the page of one run.
_HEADLINES = (
    "deadline_satisfactory_ratio", "deadlines_met", "admitted_late", "mean_gpu_utilisation",
    "mean_cluster_efficiency", "best_effort_mean_jct_seconds", "overall_gpu_usage", "decision_ms_p99",
    "wall_seconds",
)  # fmt: skip
#: Number of late jobs listed on a page; the files have all.
_MOST_BROKEN = 50
#: Runs share one budget of points, so that a page of many runs opens as fast as one of few.
_FEWEST_STEPS = 200

PlotlyJs = Literal["inline", "directory"]


def write_report(
    outcomes: Sequence[RunOutcome], path: str | Path, *, title: str, plotlyjs: PlotlyJs = "inline"
) -> Path:
    """Write the page and return its path; the folder is created if needed.

    ``plotlyjs``: "inline" puts Plotly.js into the page, "directory" beside it (`plotly.min.js`), where
    several pages share it. Raises ValueError without any outcome, OSError if the file cannot be written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        unfinished.write_text(report_page(outcomes, title=title, plotlyjs=plotlyjs), encoding="utf-8")
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    if plotlyjs == "directory":
        shutil.copyfile(
            Path(plotly.__file__).parent / "package_data" / "plotly.min.js", target.parent / "plotly.min.js"
        )
    return target


def report_page(outcomes: Sequence[RunOutcome], *, title: str, plotlyjs: PlotlyJs = "inline") -> str:
    """Return the page as text. Raises ValueError without any outcome."""
    runs = runs_of(outcomes)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    figures: dict[str, dict[str, Any]] = {}
    compared = (
        _collect(figures, comparison_drawings(runs), made_how_all(outcomes), "all") if len(runs) > 1 else []
    )
    most_steps = max(_FEWEST_STEPS, MOST_STEPS // len(runs))
    sections = [_section(figures, run, number, most_steps) for number, run in enumerate(runs)]
    return environment.get_template("report.html.j2").render(
        title=title,
        made=made_how_all(outcomes),
        style=Markup(_read("report.css")),
        script=Markup(_read("report.js")),
        plotlyjs=Markup(get_plotlyjs()) if plotlyjs == "inline" else None,
        runs=runs,
        warnings=differences(outcomes),
        headlines=_headlines(runs[0]) if len(runs) == 1 else [],
        table=metric_table(runs),
        compared=compared,
        sections=sections,
        figures_json=_embedded(figures),
        summaries=_embedded([run.summary for run in runs]),
    )


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


def _collect(
    figures: dict[str, dict[str, Any]], drawn: Sequence[Drawing], made: str, group: str
) -> list[dict[str, Any]]:
    """Add figures to those of the page and return what the template needs to place them."""
    cards = []
    for drawing in drawn:
        key = f"{group}-{drawing.name}"
        if drawing.figure is not None:
            figures[key] = drawing.as_json(made)
        height = drawing.figure.layout.height if drawing.figure is not None else None
        cards.append({"key": key, "drawing": drawing, "made": made, "height": height or 300})
    return cards


def _section(figures: dict[str, dict[str, Any]], run: Run, number: int, most_steps: int) -> dict[str, Any]:
    made = made_how(run.outcome)
    return {
        "run": run,
        "made": made,
        "cards": _collect(figures, drawings(run.outcome, most_steps), made, f"run{number}"),
        "broken": list(run.outcome.broken.items())[:_MOST_BROKEN],
        "more_broken": max(0, len(run.outcome.broken) - _MOST_BROKEN),
        "stopped_after": duration_text(simulated_seconds(run.outcome)) if run.outcome.interrupted else None,
    }


def _headlines(run: Run) -> list[dict[str, str]]:
    by_name = {metric.name: metric for metric in METRICS}
    return [
        {
            "label": by_name[name].label,
            "text": shown(value_of(run.summary, by_name[name]), by_name[name].form),
        }
        for name in _HEADLINES
        if run.summary[name] is not None
    ]


def _embedded(value: Any) -> Markup:
    """Return JSON for a script element, escaped so that it cannot end the element or open a comment."""
    text = json.dumps(value, cls=PlotlyJSONEncoder, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
