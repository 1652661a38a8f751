"""Mean number of inputs per call of `predict`, over time."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, PanelRequest, base_figure
from deployments.models import DeploymentSample
from deployments.selectors.history import deployment_history

Data = tuple[Sequence[DeploymentSample], int]


def load(request: PanelRequest) -> Data:
    """Return the samples and the largest batch."""
    deployment = request.the_deployment()
    return deployment_history(deployment, request.since), deployment.max_batch


def figure(data: Data) -> go.Figure | None:
    """Draw the mean batch of each period; a period without answered inputs is a gap."""
    samples, most = data
    if not any(sample.inputs for sample in samples):
        return None
    drawn = base_figure(hovermode="x unified")
    times = [sample.ended_at for sample in samples]
    drawn.add_trace(
        go.Scatter(
            x=times,
            y=[sample.inputs / sample.batches if sample.inputs else None for sample in samples],
            name="Mean batch",
            mode="lines+markers",
            marker={"size": 4},
            line={"color": colours.PROMISED, "width": 2},
            hovertemplate="%{y:.1f}",
        )
    )
    drawn.add_trace(
        go.Scatter(
            x=[times[0], times[-1]],
            y=[most] * 2,
            name="Largest allowed",
            mode="lines",
            line={"color": colours.NEUTRAL, "width": 2, "dash": "dot"},
            hovertemplate="%{y}",
        )
    )
    drawn.update_yaxes(title_text="inputs", rangemode="tozero")
    drawn.update_xaxes(type="date")
    return drawn


PANEL = Panel(
    title="Batch sizes",
    load=load,
    figure=figure,
    empty="No requests yet.",
    refresh_on=("deployments",),
)
