"""Throughput of one job, with its number of GPUs."""

from __future__ import annotations

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure
from scheduling.selectors.jobs.job_page import MetricSeries, metric_series


def figure(series: MetricSeries) -> go.Figure | None:
    """Draw iterations per second by iteration."""
    if not any(series.iterations_per_second):
        return None
    drawn = base_figure(showlegend=False)
    drawn.add_trace(
        go.Scatter(
            x=series.iterations,
            y=series.iterations_per_second,
            mode="lines",
            line={"color": colours.BEST_EFFORT, "width": 2},
            customdata=series.gpus,
            hovertemplate="iteration %{x}: %{y:.2f} iterations/s<br>on %{customdata} GPUs<extra></extra>",
        )
    )
    drawn.update_yaxes(title_text="iterations/s", rangemode="tozero")
    drawn.update_xaxes(title_text="iteration")
    return drawn


PANEL = Panel(
    title="Throughput",
    load=lambda request: metric_series(request.the_job()),
    figure=figure,
    empty="No throughput was reported yet.",
    refresh_on=("metrics",),
    note="Iterations of the global batch per second.",
)
