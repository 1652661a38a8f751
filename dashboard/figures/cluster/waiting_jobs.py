"""Running and waiting jobs over time."""

from __future__ import annotations

import plotly.graph_objects as go

from cluster.selectors.utilisation import UtilisationSeries, utilisation_series
from dashboard import colours
from dashboard.figures.panel import Panel, base_figure


def figure(series: UtilisationSeries) -> go.Figure | None:
    """Draw two lines over the same buckets as the utilisation."""
    if not series.times:
        return None
    drawn = base_figure(hovermode="x unified")
    for name, values, colour in (
        ("Running", series.running_jobs, colours.GOOD),
        ("Waiting", series.waiting_jobs, colours.WARNING),
    ):
        drawn.add_trace(
            go.Scatter(
                x=series.times,
                y=values,
                name=name,
                mode="lines",
                line={"color": colour, "width": 2, "shape": "hv"},
                hovertemplate="%{y:.1f}",
            )
        )
    drawn.update_yaxes(title_text="jobs", rangemode="tozero")
    drawn.update_xaxes(type="date")
    return drawn


PANEL = Panel(
    title="Jobs running and waiting",
    load=lambda request: utilisation_series(request.since, request.now),
    figure=figure,
    empty="Nothing was measured in this time.",
    refresh_on=("planned",),
    note="All projects (UTC).",
)
