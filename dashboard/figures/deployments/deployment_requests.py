"""Requests per second of a deployment over time: answered, failed, refused and rejected."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure
from deployments.models import DeploymentSample
from deployments.selectors.history import deployment_history

_KINDS: tuple[tuple[str, str, Callable[[DeploymentSample], int]], ...] = (
    ("Answered", colours.GOOD, lambda sample: sample.requests - sample.failed),
    ("Failed", colours.BAD, lambda sample: sample.failed),
    ("Refused: queue full", colours.WARNING, lambda sample: sample.refused),
    ("Rejected: wrong input", colours.NEUTRAL, lambda sample: sample.rejected),
)


def figure(samples: Sequence[DeploymentSample]) -> go.Figure | None:
    """Stack requests per second by outcome."""
    if not any(sample.requests or sample.refused or sample.rejected for sample in samples):
        return None
    drawn = base_figure(hovermode="x unified")
    seconds = [max(1e-3, (sample.ended_at - sample.began_at).total_seconds()) for sample in samples]
    for name, colour, count in _KINDS:
        rates = [count(sample) / length for sample, length in zip(samples, seconds, strict=True)]
        if any(rates):
            drawn.add_trace(
                go.Scatter(
                    x=[sample.ended_at for sample in samples],
                    y=rates,
                    name=name,
                    stackgroup="requests",
                    mode="lines",
                    line={"width": 0.5, "color": colour},
                    fillcolor=colour,
                    hovertemplate="%{y:.2f}/s",
                )
            )
    drawn.update_yaxes(title_text="requests/s", rangemode="tozero")
    drawn.update_xaxes(type="date")
    return drawn


PANEL = Panel(
    title="Requests",
    load=lambda request: deployment_history(request.the_deployment(), request.since),
    figure=figure,
    empty="No requests yet.",
    refresh_on=("deployments",),
)
