"""Percentiles of a deployment's latency over time, against its target."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, PanelRequest, base_figure
from deployments.models import DeploymentSample
from deployments.selectors.history import deployment_history

Data = tuple[Sequence[DeploymentSample], float | None]
_LINES = (
    ("50th percentile", "p50_seconds", colours.SOFT),
    ("95th percentile", "p95_seconds", colours.PROMISED),
    ("99th percentile", "p99_seconds", colours.PROFILING),
)


def load(request: PanelRequest) -> Data:
    """Return the samples and the target in seconds."""
    deployment = request.the_deployment()
    return deployment_history(deployment, request.since), deployment.latency_target_seconds


def figure(data: Data) -> go.Figure | None:
    """Draw milliseconds; a period without requests is a gap."""
    samples, target = data
    if not any(sample.p50_seconds is not None for sample in samples):
        return None
    drawn = base_figure(hovermode="x unified")
    times = [sample.ended_at for sample in samples]
    for name, field, colour in _LINES:
        values = [getattr(sample, field) for sample in samples]
        drawn.add_trace(
            go.Scatter(
                x=times,
                y=[None if value is None else 1000.0 * value for value in values],
                name=name,
                mode="lines+markers",
                marker={"size": 4},
                line={"color": colour, "width": 2},
                hovertemplate="%{y:.1f} ms",
            )
        )
    if target is not None:
        drawn.add_trace(
            go.Scatter(
                x=[times[0], times[-1]],
                y=[1000.0 * target] * 2,
                name="Target of the 95th",
                mode="lines",
                line={"color": colours.BAD, "width": 2, "dash": "dot"},
                hovertemplate="%{y:.0f} ms",
            )
        )
    drawn.update_yaxes(title_text="milliseconds", rangemode="tozero")
    drawn.update_xaxes(type="date")
    return drawn


PANEL = Panel(
    title="Latency",
    load=load,
    figure=figure,
    empty="No requests yet.",
    refresh_on=("deployments",),
    note="On the server, from the last byte of a request to its answer.",
)
