"""Servers of a deployment over time, and those of its inference cluster at home and lent."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from cluster.choices import LENDING_COLOURS, LendingState
from dashboard import colours
from dashboard.figures.panel import Panel, base_figure
from deployments.models import DeploymentSample
from deployments.selectors.history import deployment_history


def figure(samples: Sequence[DeploymentSample]) -> go.Figure | None:
    """Draw the inference cluster's servers as areas, the deployment's as lines."""
    if not samples:
        return None
    drawn = base_figure(hovermode="x unified")
    times = [sample.ended_at for sample in samples]
    for name, field, state in (
        ("At home", "servers_home", LendingState.INFERENCE),
        ("Lent", "servers_lent", LendingState.ON_LOAN),
    ):
        drawn.add_trace(
            go.Scatter(
                x=times,
                y=[getattr(sample, field) for sample in samples],
                name=name,
                stackgroup="servers",
                mode="lines",
                line={"width": 0.5, "color": LENDING_COLOURS[state], "shape": "hv"},
                fillcolor=LENDING_COLOURS[state],
                opacity=0.5,
                hovertemplate="%{y}",
            )
        )
    for name, field, colour, dash, shape in (
        ("Serving", "serving", colours.PROMISED, "solid", "hv"),
        ("Wanted", "wanted", colours.BAD, "dot", "hv"),
        ("Busy", "busy_servers", colours.WARNING, "solid", "linear"),
    ):
        drawn.add_trace(
            go.Scatter(
                x=times,
                y=[getattr(sample, field) for sample in samples],
                name=name,
                mode="lines",
                line={"width": 2, "color": colour, "dash": dash, "shape": shape},
                hovertemplate="%{y:.2~f}",
            )
        )
    drawn.update_yaxes(title_text="servers", rangemode="tozero")
    drawn.update_xaxes(type="date")
    return drawn


PANEL = Panel(
    title="Servers",
    load=lambda request: deployment_history(request.the_deployment(), request.since),
    figure=figure,
    empty="No samples yet.",
    refresh_on=("deployments",),
    note="Areas: servers of the inference cluster, at home and lent to training. Lines: of this deployment.",
)
