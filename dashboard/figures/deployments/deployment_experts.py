"""Predicted and actual popularity of the experts of a deployment's model."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dashboard.figures.jobs.expert_heat import heat_map, layer_name
from dashboard.figures.panel import Panel
from deployments.selectors.experts import deployment_experts

#: From unused through an even share to three times that.
_SCALE = [[0.0, "#e9edf5"], [1 / 3, "#8fb4ee"], [1.0, "#1f3f8f"]]


def figure(experts: dict[str, Any]) -> go.Figure | None:
    """Draw two rows for each layer with an estimate, and one for the others."""
    rows = [row for layer in experts["layers"] for row in _rows(layer)]
    if not rows:
        return None
    loads = [[len(shares) * share for share in shares] for _, shares in rows]
    return heat_map(
        [{"name": name} for name, _ in rows],
        loads,
        [[f"{load:.2f}" for load in row] for row in loads],
        [
            [f"{name}, expert {expert}<br>{share:.1%} of the rows" for expert, share in enumerate(shares)]
            for name, shares in rows
        ],
        zmin=0.0,
        zmax=3.0,
        colorscale=_SCALE,
        colorbar={"thickness": 10, "tickvals": [0, 1, 2, 3], "ticktext": ["0", "1: even", "2", "3 or more"]},
    )


def _rows(layer: dict[str, Any]) -> list[tuple[str, list[float]]]:
    name = layer_name(layer)
    if layer["predicted"] is None:
        return [(name, layer["popularity"])]
    return [(f"predicted, {name}", layer["predicted"]), (f"actual, {name}", layer["popularity"])]


def caption(experts: dict[str, Any]) -> str:
    """Return how often the prediction was wrong."""
    estimated = sum(layer["estimated_passes"] for layer in experts["layers"])
    replaced = sum(layer["replaced_passes"] for layer in experts["layers"])
    words = ["Rows since the group began; 1 is an even share"]
    if estimated:
        words.append(f"In {replaced / estimated:.0%} of the predicted passes the experts were placed again")
    else:
        words.append("Nothing is predicted: the layers have their even places")
    if experts["layers_left_out"]:
        words.append(f"{experts['layers_left_out']} more layers are not shown")
    return ". ".join(words) + "."


PANEL = Panel(
    title="Popularity of experts",
    load=lambda request: deployment_experts(request.the_deployment()),
    figure=figure,
    empty="No requests yet.",
    refresh_on=("deployments",),
    caption=caption,
    is_absent=lambda experts: not experts["layers"],
)
