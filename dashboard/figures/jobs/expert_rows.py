"""All-to-alls of experts' rows within one iteration of a job, and their share of it."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.jobs.expert_heat import are_everywhere, layer_name
from dashboard.figures.panel import Panel, base_figure
from scheduling.selectors.jobs.experts import experts_of

#: With more layers, all share one row.
_DRAWN_LAYERS = 8


def figure(experts: dict[str, Any]) -> go.Figure | None:
    """Draw a row for the passes and one for each layer: a bar for each all-to-all."""
    timing = experts["all_to_all"]
    if timing is None:
        return None
    drawn = base_figure(margin={"l": 150, "r": 16, "t": 12, "b": 46}, barmode="overlay", showlegend=False)
    backward, end = timing["backward_seconds"], timing["seconds"]
    for name, begin, until in (("Forward pass", 0.0, backward), ("Backward pass and step", backward, end)):
        drawn.add_trace(_bars("Iteration", [(begin, until, name)], colours.NEUTRAL))
    layers = experts["layers"]
    for number, layer in enumerate(layers):
        row = "All-to-all" if len(layers) > _DRAWN_LAYERS else f"All-to-all, {layer_name(layer)}"
        spans = [
            (span["begin_seconds"], span["end_seconds"], layer_name(layer))
            for span in timing["spans"]
            if span["layer"] == number
        ]
        if spans:
            drawn.add_trace(_bars(row, spans, colours.PROMISED))
    drawn.update_xaxes(title_text="ms since the iteration began", rangemode="tozero")
    drawn.update_yaxes(autorange="reversed", automargin=True)
    return drawn


def _bars(row: str, spans: list[tuple[float, float, str]], colour: str) -> go.Bar:
    return go.Bar(
        y=[row] * len(spans),
        base=[1e3 * begin for begin, _, _ in spans],
        x=[1e3 * (end - begin) for begin, end, _ in spans],
        orientation="h",
        name=row,
        marker={"color": colour, "line": {"width": 1, "color": "rgba(255, 255, 255, 0.6)"}},
        customdata=[[name, 1e3 * end] for _, end, name in spans],
        hovertemplate="%{customdata[0]}: %{base:.2f} to %{customdata[1]:.2f} ms<extra></extra>",
    )


def caption(experts: dict[str, Any]) -> str:
    """Return the share of an iteration during which rows are exchanged."""
    timing = experts["all_to_all"]
    if timing is None:
        everywhere = are_everywhere(experts["layers"])
        return "No rows are exchanged: every worker has all experts." if everywhere else "Not measured yet."
    return (
        f"Rows are exchanged during {timing['share']:.0%} of an iteration: "
        f"{1e3 * timing['all_to_all_seconds']:.1f} of "
        f"{1e3 * timing['iteration_seconds']:.1f} ms, as rank 0 measured it (mean of {timing['iterations']} "
        "iterations, including waits for other workers). The figure shows the last of them."
        + _between_servers(timing)
    )


def _between_servers(timing: dict[str, Any]) -> str:
    found = timing.get("between_servers")
    if found is None:
        return ""
    return (
        f" Between servers {found['hierarchical_share']:.0%} of all-to-alls are hierarchical; one was "
        f"predicted to take {1e3 * found['predicted_seconds']:.2f} ms, by {found['rates_source']} rates, and "
        f"took {1e3 * found['measured_seconds']:.2f} ms."
    )


PANEL = Panel(
    title="All-to-all in an iteration",
    load=lambda request: experts_of(request.the_job()),
    figure=figure,
    empty="No all-to-all was measured.",
    refresh_on=("metrics", "changed"),
    caption=caption,
    caption_when_empty=True,
    is_absent=lambda experts: not experts["layers"],
)
