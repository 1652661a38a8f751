"""Servers of a deployment that have each expert, and the number of replicas of each expert."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dashboard.figures.jobs.expert_heat import heat_map, layer_name
from dashboard.figures.panel import Panel, plain_text
from deployments.selectors.experts import deployment_experts
from scheduling.core.question.quantities import duration_text

_SCALE = [[0.0, "#e9edf5"], [1.0, "#1f3f8f"]]


def figure(experts: dict[str, Any]) -> go.Figure | None:
    """Colour each expert by its number of servers."""
    layers = experts["layers"]
    if not layers:
        return None
    return heat_map(
        layers,
        [[len(hosts) for hosts in layer["hosts"]] for layer in layers],
        [[" ".join(str(rank) for rank in hosts) for hosts in layer["hosts"]] for layer in layers],
        [
            [
                f"{layer_name(layer)}, expert {expert}<br>{_names(experts, hosts)}"
                for expert, hosts in enumerate(layer["hosts"])
            ]
            for layer in layers
        ],
        zmin=1,
        zmax=max(2, len(experts["servers"])),
        colorscale=_SCALE,
        colorbar={"thickness": 10, "title": {"text": "servers"}},
    )


def _names(experts: dict[str, Any], hosts: list[int]) -> str:
    names = experts["servers"]
    return ", ".join(plain_text(names[rank], 24) if rank < len(names) else f"rank {rank}" for rank in hosts)


def caption(experts: dict[str, Any]) -> str:
    """Return the gain of the placement and the cost of swapping."""
    layers = experts["layers"]
    count = max(1, len(layers))
    load, even = (sum(layer[name] for layer in layers) / count for name in ("load", "even_load"))
    return (
        f"Ranks of servers that have each expert in the newest pass. The fullest server computes {load:.2f} "
        f"times the mean, {even:.2f} with even places. The first server swapped {experts['swaps']:,} experts "
        f"in {duration_text(experts['swap_seconds'])}, for which batches waited "
        f"{duration_text(experts['waited_seconds'])}."
    )


PANEL = Panel(
    title="Places of experts",
    load=lambda request: deployment_experts(request.the_deployment()),
    figure=figure,
    empty="No requests yet.",
    refresh_on=("deployments",),
    caption=caption,
    is_absent=lambda experts: not experts["layers"],
)
