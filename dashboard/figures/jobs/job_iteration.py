"""One iteration of a job as a timeline: computing, encoding, communicating and decoding, by resource."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure
from scheduling.selectors.network.communication import communication_of

_STAGES = {
    "backward": ("Backward pass", colours.NEUTRAL),
    "encode": ("Encode", colours.CHANGING),
    "exchange": ("Communicate", colours.PROMISED),
    "decode": ("Decode", colours.BEST_EFFORT),
}


_RESOURCES = {
    "gpu": "GPU",
    "processors": "processors",
    "within": "within servers",
    "between": "between servers",
}


def figure(report: dict[str, Any]) -> go.Figure | None:
    """Draw a row for each stage and resource and a bar for each group of gradients, from the start of the
    backward pass. The predicted row is drawn paler below each measured one."""
    measured = (report["window"] or {}).get("spans") or []
    if not measured:
        return None
    drawn = base_figure(margin={"l": 190, "r": 16, "t": 28, "b": 46}, barmode="overlay", showlegend=False)
    predicted = report["predicted_spans"]
    for stage in _STAGES:
        for resource in _RESOURCES:
            for spans, is_measured in ((measured, True), (predicted, False)):
                mine = [each for each in spans if (each["stage"], _resource(each)) == (stage, resource)]
                if mine:
                    drawn.add_trace(_row(stage, resource, mine, is_measured=is_measured))
    drawn.update_xaxes(title_text="ms since the backward pass began", rangemode="tozero")
    drawn.update_yaxes(autorange="reversed", automargin=True)
    return drawn


def _row(stage: str, resource: str, spans: list[dict[str, Any]], *, is_measured: bool) -> go.Bar:
    name, colour = _STAGES[stage]
    row = name if stage == "backward" else f"{name}, {_RESOURCES[resource]}"
    row = row if is_measured else f"{row} (predicted)"
    return go.Bar(
        y=[row] * len(spans),
        base=[1e3 * span["begin_seconds"] for span in spans],
        x=[1e3 * max(0.0, span["end_seconds"] - span["begin_seconds"]) for span in spans],
        orientation="h",
        name=row,
        opacity=1.0 if is_measured else 0.45,
        marker={"color": colour, "line": {"width": 0.5, "color": "rgba(255, 255, 255, 0.6)"}},
        customdata=[[span["group"], 1e3 * span["end_seconds"]] for span in spans],
        hovertemplate="Group %{customdata[0]}: %{base:.2f} to %{customdata[1]:.2f} ms<extra></extra>",
    )


def _resource(span: dict[str, Any]) -> str:
    """Return the span's resource, which workers of earlier versions do not report."""
    return str(span.get("resource", "gpu"))


def caption(report: dict[str, Any]) -> str:
    """Return the exposed communication time, measured and predicted."""
    window = report["window"]
    if not window or report["chosen"] is None:
        return ""
    measured = 1e3 * window.get("exposed_seconds", 0.0)
    predicted = 1e3 * report["chosen"]["predicted"]["exposed_seconds"]
    return (
        f"Measured by rank 0 at iteration {window['iteration']}: it waits "
        f"{measured:.1f} ms for communication; {predicted:.1f} ms were predicted."
    )


PANEL = Panel(
    title="One iteration",
    load=lambda request: communication_of(request.the_job()),
    figure=figure,
    empty="The exchange of its gradients has not been measured.",
    refresh_on=("metrics", "changed"),
    caption=caption,
)
