"""Load of each expert of a job's model, by layer."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dashboard.figures.jobs.expert_heat import heat_map, layer_name
from dashboard.figures.panel import Panel
from scheduling.selectors.jobs.experts import experts_of

#: From unused through an even share to three times that.
_SCALE = [[0.0, "#e9edf5"], [1 / 3, "#8fb4ee"], [1.0, "#1f3f8f"]]
_LARGEST_LOAD = 3.0


def figure(experts: dict[str, Any]) -> go.Figure | None:
    """Colour each expert by its rows relative to an even share."""
    layers = experts["layers"]
    if not layers:
        return None
    loads = [layer["load"] for layer in layers]
    return heat_map(
        layers,
        loads,
        [[f"{load:.2f}" for load in row] for row in loads],
        [_hovers(layer) for layer in layers],
        zmin=0.0,
        zmax=_LARGEST_LOAD,
        colorscale=_SCALE,
        colorbar={"thickness": 10, "tickvals": [0, 1, 2, 3], "ticktext": ["0", "1: even", "2", "3 or more"]},
    )


def _hovers(layer: dict[str, Any]) -> list[str]:
    return [
        f"{layer_name(layer)}, expert {expert}<br>{load:.2f} times an even share: {rows:,} rows"
        + (f"<br>{dropped:,} of them dropped" if dropped else "")
        for expert, (load, rows, dropped) in enumerate(
            zip(layer["load"], layer["rows"], layer["dropped"], strict=True)
        )
    ]


def caption(experts: dict[str, Any]) -> str:
    """Return the iterations that the figure covers, and the routing of tokens over all layers."""
    if not experts["layers"]:
        return f"{experts['other_layers']} layers are not reported: they are too many or too large."
    last, count = experts["iteration"], experts["iterations"]
    layers = experts["layers"]
    tokens = sum(layer["tokens"] for layer in layers)
    rows = sum(sum(layer["rows"]) for layer in layers)
    dropped = sum(sum(layer["dropped"]) for layer in layers)
    two = sum(layer["two_expert_share"] * layer["tokens"] for layer in layers)
    balances = [layer["balance_loss"] for layer in layers]
    words = [
        f"Rows of all workers in iterations {last - count + 1:,} to {last:,}; 1 is an even share",
        f"{two / max(tokens, 1):.0%} of the tokens went to two experts",
        f"{dropped / max(rows, 1):.1%} of the rows were dropped" if dropped else "No rows were dropped",
        f"Balance loss {min(balances):.2f}"
        + (f" to {max(balances):.2f}" if max(balances) - min(balances) >= 0.005 else ""),
    ]
    if experts["other_layers"]:
        words.append(f"{experts['other_layers']} more layers are not shown")
    return ". ".join(words) + "."


PANEL = Panel(
    title="Load of experts",
    load=lambda request: experts_of(request.the_job()),
    figure=figure,
    empty="Layers with this many experts are not reported.",
    refresh_on=("metrics", "changed"),
    caption=caption,
    caption_when_empty=True,
    is_absent=lambda experts: not experts["layers"] and not experts["other_layers"],
    height=180,
)
