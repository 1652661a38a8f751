"""One iteration of a job as a timeline: what computes, encodes, communicates and decodes when."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure
from scheduling.selectors.communication import communication_of

_STAGES = {
    "backward": ("Backward pass", colours.NEUTRAL),
    "encode": ("Encode", colours.CHANGING),
    "exchange": ("Communicate", colours.PROMISED),
    "decode": ("Decode", colours.BEST_EFFORT),
}


def figure(told: dict[str, Any]) -> go.Figure | None:
    """A row for each stage, a bar for each group of gradients, from the beginning of the backward pass."""
    spans = (told["window"] or {}).get("spans") or []
    if not spans:
        return None
    drawn = base_figure(margin={"l": 110, "r": 16, "t": 28, "b": 46}, barmode="overlay", showlegend=False)
    for stage, (name, colour) in _STAGES.items():
        some = [span for span in spans if span["stage"] == stage]
        if not some:
            continue
        drawn.add_trace(
            go.Bar(
                y=[name] * len(some),
                base=[1e3 * span["begin_seconds"] for span in some],
                x=[1e3 * max(0.0, span["end_seconds"] - span["begin_seconds"]) for span in some],
                orientation="h",
                name=name,
                marker={"color": colour, "line": {"width": 0.5, "color": "rgba(255, 255, 255, 0.6)"}},
                customdata=[[span["group"], 1e3 * span["end_seconds"]] for span in some],
                hovertemplate="Group %{customdata[0]}: %{base:.2f} to %{customdata[1]:.2f} ms<extra></extra>",
            )
        )
    drawn.update_xaxes(title_text="ms since the backward pass began", rangemode="tozero")
    drawn.update_yaxes(autorange="reversed", automargin=True)
    return drawn


def caption(told: dict[str, Any]) -> str:
    """What was waited for, measured beside predicted."""
    window = told["window"]
    if not window or told["chosen"] is None:
        return ""
    measured = 1e3 * window.get("exposed_seconds", 0.0)
    predicted = 1e3 * told["chosen"]["predicted"]["exposed_seconds"]
    return (
        f"Measured by rank 0 at iteration {window['iteration']}: communication alone is waited for "
        f"{measured:.1f} ms, {predicted:.1f} ms were predicted."
    )


PANEL = Panel(
    title="One iteration",
    load=lambda request: communication_of(request.the_job()),
    figure=figure,
    empty="Nothing was measured of how its gradients are exchanged.",
    refresh_on=("metrics", "changed"),
    caption=caption,
)
