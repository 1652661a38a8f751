"""The metrics that a function reports, by iteration."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard import colours
from dashboard.colours import JOB_PALETTE
from dashboard.figures.jobs import job_tiers
from dashboard.figures.panel import Panel, base_figure, plain_text
from scheduling.selectors.jobs.job_page import MetricSeries, metric_series

#: Further metrics are not drawn; the API returns all of them.
_MAXIMUM_METRICS = 6
_ROW_HEIGHT = 150
#: Fills the two page rows that this panel spans.
_SMALLEST_HEIGHT = 590


def figure(series: MetricSeries) -> go.Figure | None:
    """Draw one row per metric over a common axis; thin lines mark changes in the number of GPUs."""
    own = [name for name in series.values if not name.startswith(job_tiers.PREFIX)]
    names = sorted(own, key=lambda name: (name != "loss", name))[:_MAXIMUM_METRICS]
    if not names:
        return None
    look = base_figure().layout
    drawn = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.12 / len(names))
    drawn.update_layout(look)
    drawn.update_layout(
        showlegend=False,
        height=max(_SMALLEST_HEIGHT, 60 + _ROW_HEIGHT * len(names)),
        margin={"l": 64, "r": 16, "t": 20, "b": 46},
    )
    for row, name in enumerate(names, start=1):
        drawn.add_trace(
            go.Scatter(
                x=series.iterations,
                y=series.values[name],
                name=plain_text(name),
                mode="lines",
                connectgaps=True,
                line={"color": JOB_PALETTE[(row - 1) % len(JOB_PALETTE)], "width": 2},
                hovertemplate="iteration %{x}: %{y:.4g}<extra></extra>",
            ),
            row=row,
            col=1,
        )
        drawn.update_yaxes(title_text=plain_text(name, 18), row=row, col=1)
    for number, (iteration, gpus) in enumerate(series.generations):
        previous = series.generations[number - 1][1] if number else None
        if gpus != previous:
            drawn.add_vline(x=iteration, line={"color": colours.NEUTRAL, "width": 1, "dash": "dot"})
            drawn.add_annotation(
                x=iteration, y=1, yref="paper", xref="x", text=f"{gpus} GPU{'s' if gpus > 1 else ''}",
                showarrow=False, yanchor="bottom", font={"size": 10, "color": colours.NEUTRAL},
            )  # fmt: skip
    drawn.update_xaxes(title_text="iteration", row=len(names), col=1)
    return drawn


PANEL = Panel(
    title="Metrics",
    load=lambda request: metric_series(request.the_job()),
    figure=figure,
    empty="No metric was reported yet.",
    refresh_on=("metrics", "changed"),
    note="Reported by the function; dotted lines mark changes in the number of GPUs.",
)
