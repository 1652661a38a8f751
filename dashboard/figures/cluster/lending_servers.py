"""Servers by whitelist and lending state, over time."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from cluster.choices import LENDING_COLOURS, LendingState
from dashboard import colours
from dashboard.figures.panel import Panel, base_figure
from lending.core.history import ServerCounts
from lending.selectors.history import servers_history

#: From bottom to top: servers on the training whitelist are below the others.
_STACK = (
    (LendingState.TRAINING, "Training", "training"),
    (LendingState.ON_LOAN, "On loan", "on_loan"),
    (LendingState.RECLAIMING, "Being returned", "reclaiming"),
    (LendingState.INFERENCE, "Inference, at home", "inference"),
)


def figure(steps: list[ServerCounts]) -> go.Figure | None:
    """Draw stacked steps that add up to the servers of both clusters, with a line at the top of the training
    whitelist."""
    if not steps:
        return None
    drawn = base_figure(hovermode="x unified")
    times = [step.at for step in steps]
    for state, name, field in _STACK:
        drawn.add_trace(
            go.Scatter(
                x=times,
                y=[getattr(step, field) for step in steps],
                name=name,
                stackgroup="servers",
                mode="lines",
                line={"width": 0.5, "color": LENDING_COLOURS[state], "shape": "hv"},
                fillcolor=LENDING_COLOURS[state],
                hovertemplate="%{y}",
            )
        )
    drawn.add_trace(
        go.Scatter(
            x=times,
            y=[step.training_whitelist for step in steps],
            name="Training whitelist",
            mode="lines",
            line={"width": 2, "color": colours.BAD, "dash": "dot", "shape": "hv"},
            hovertemplate="%{y}",
        )
    )
    most = max(step.training_whitelist + step.inference for step in steps)
    drawn.update_yaxes(
        title_text="servers", range=[0, max(1, most)], tickformat="d", dtick=max(1, math.ceil(most / 6))
    )
    drawn.update_xaxes(type="date")
    return drawn


PANEL = Panel(
    title="Servers by whitelist",
    load=lambda request: servers_history(request.the_inference_cluster(), request.since, request.now),
    figure=figure,
    empty="Neither cluster has a server yet. PUNCTUAL_INFERENCE_AGENTS=2 make run starts two of each "
    "(docs/lending.md).",
    refresh_on=("servers",),
    note="Below the dotted line: on the training whitelist; above it: on the inference whitelist (UTC).",
    height=300,
)
