"""Progress of one job against its deadline, with the projected finish."""

from __future__ import annotations

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure, mark_time
from scheduling.selectors.jobs.job_page import JobProgress, progress


def figure(data: JobProgress) -> go.Figure | None:
    """Draw iterations over time: measured solid, projected dotted, goal and deadline as lines."""
    if not data.measured and not data.projected:
        return None
    drawn = base_figure(hovermode="closest", margin={"l": 64, "r": 20, "t": 28, "b": 46})
    drawn.add_trace(
        go.Scatter(
            x=[point.at for point in data.measured],
            y=[point.iterations for point in data.measured],
            name="Done",
            mode="lines",
            line={"color": colours.GOOD, "width": 2.5},
            hovertemplate="%{y:,.0f} iterations<br>%{x|%H:%M:%S} UTC<extra></extra>",
        )
    )
    if data.projected:
        drawn.add_trace(
            go.Scatter(
                x=[point.at for point in data.projected],
                y=[point.iterations for point in data.projected],
                name="Planned",
                mode="lines",
                line={"color": colours.PROMISED, "width": 2, "dash": "dot"},
                hovertemplate="%{y:,.0f} iterations planned<br>%{x|%H:%M:%S} UTC<extra></extra>",
            )
        )
    drawn.add_hline(y=data.max_iterations, line={"color": colours.NEUTRAL, "width": 1, "dash": "dot"})
    if data.deadline_at is not None:
        mark_time(drawn, data.deadline_at, "deadline", colours.BAD)
    drawn.update_yaxes(title_text="iterations", range=[0, data.max_iterations * 1.06])
    drawn.update_xaxes(type="date")
    drawn.update_layout(legend={"x": 0.01, "y": 0.98, "yanchor": "top", "orientation": "v"})
    return drawn


PANEL = Panel(
    title="Progress against the deadline",
    load=lambda request: progress(request.the_job(), request.now),
    figure=figure,
    empty="Nothing trained yet. Progress appears with the first reported iteration.",
    refresh_on=("changed", "metrics"),
    note="Measured iterations, and the plan from here to the projected finish (UTC).",
)
