"""Usage of training and inference cluster together, and of training alone."""

from __future__ import annotations

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure
from lending.core.history import CombinedPoint
from lending.selectors.history import combined_usage_history


def figure(points: list[CombinedPoint]) -> go.Figure | None:
    """Draw two lines, as shares of GPUs; the number of GPUs is shown on hover."""
    if not points:
        return None
    drawn = base_figure()
    times = [point.at for point in points]
    drawn.add_trace(
        go.Scatter(
            x=times,
            y=[point.combined_share for point in points],
            name="Both clusters",
            mode="lines",
            line={"color": colours.PROMISED, "width": 2, "shape": "hv"},
            fill="tozeroy",
            fillcolor="rgba(59, 111, 212, 0.14)",
            customdata=[[point.training_busy_gpus, point.serving_gpus, point.gpus] for point in points],
            hovertemplate="%{y:.1%}: %{customdata[0]:.1f} GPUs train and %{customdata[1]:.1f} serve, "
            "of %{customdata[2]:.0f}<br>%{x|%H:%M} UTC<extra>both</extra>",
        )
    )
    drawn.add_trace(
        go.Scatter(
            x=times,
            y=[point.training_share for point in points],
            name="Training alone",
            mode="lines",
            line={"color": colours.BEST_EFFORT, "width": 1.5, "dash": "dash", "shape": "hv"},
            customdata=[[point.training_busy_gpus, point.training_gpus] for point in points],
            hovertemplate="%{y:.1%}: %{customdata[0]:.1f} of %{customdata[1]:.1f} GPUs<br>%{x|%H:%M} UTC"
            "<extra>training alone</extra>",
        )
    )
    drawn.update_yaxes(title_text="share of GPUs", range=[0, 1.03], tickformat=".0%")
    drawn.update_xaxes(type="date")
    return drawn


PANEL = Panel(
    title="Combined usage",
    load=lambda request: combined_usage_history(request.the_inference_cluster(), request.since, request.now),
    figure=figure,
    empty="Drawn as soon as there are samples of both: the planner's of training, and the usage that the "
    "inference scheduler reports.",
    refresh_on=("planned", "usage"),
    note="GPUs of both clusters that hold training work or serve requests; and training alone, of the GPUs "
    "that it could use, borrowed ones included (UTC).",
    height=300,
)
