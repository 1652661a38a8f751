"""Outcomes of deadlines: met, missed, at risk, declined."""

from __future__ import annotations

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure
from scheduling.selectors.jobs.overview import PromiseCounts, promise_counts


def figure(counts: PromiseCounts) -> go.Figure | None:
    """Draw one bar per outcome, with its count. Outcomes that people act on are shown even at zero."""
    if counts.total() == 0:
        return None
    rows = [
        ("Met", counts.met, colours.GOOD),
        ("Missed", counts.missed, colours.BAD),
        ("At risk", counts.at_risk, colours.WARNING),
        ("Open", counts.open, colours.PROMISED),
        ("Declined", counts.declined, colours.DECLINED),
    ]
    if counts.void:
        rows.append(("Void", counts.void, colours.NEUTRAL))
    rows.reverse()
    drawn = base_figure(showlegend=False, margin={"l": 8, "r": 28, "t": 8, "b": 24})
    drawn.add_trace(
        go.Bar(
            x=[count for _, count, _ in rows],
            y=[name for name, _, _ in rows],
            orientation="h",
            marker={"color": [colour for _, _, colour in rows]},
            text=[str(count) for _, count, _ in rows],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{y}: %{x}<extra></extra>",
        )
    )
    drawn.update_xaxes(rangemode="tozero", showticklabels=False, showgrid=False)
    drawn.update_yaxes(automargin=True, ticks="", showgrid=False, ticklabelstandoff=8)
    return drawn


PANEL = Panel(
    title="Deadlines",
    load=lambda request: promise_counts(request.user, request.since),
    figure=figure,
    empty="No job with a deadline ended in this time, and none is open.",
    refresh_on=("planned", "jobs"),
    note="Jobs that ended in this time or still run. Missed: from the moment the deadline passed.",
)
