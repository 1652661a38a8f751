"""Heat maps of experts: a row for each layer, a column for each expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from dashboard.figures.panel import base_figure, plain_text

#: Maps with more experts have no texts in cells, and maps with more layers no layer names.
_LABELLED_EXPERTS, _NAMED_LAYERS = 16, 32


def heat_map(
    layers: Sequence[dict[str, Any]],
    values: Sequence[Sequence[float | None]],
    texts: Sequence[Sequence[str]],
    hovers: Sequence[Sequence[str]],
    **look: Any,
) -> go.Figure:
    """Return a heat map. Rows of layers with fewer experts are shorter.

    Args:
        values, texts, hovers: by layer and expert: the value to colour, the cell's text and its hover text.
        look: properties of the trace, such as its colours.
    """
    experts = max(map(len, values))
    labelled, named = experts <= _LABELLED_EXPERTS, len(layers) <= _NAMED_LAYERS
    figure = base_figure(margin={"l": 8, "r": 8, "t": 8, "b": 40}, height=_height(len(layers)))
    figure.add_trace(
        go.Heatmap(
            z=[[*row, *[None] * (experts - len(row))] for row in values],
            x=list(range(experts)),
            y=list(range(len(layers))),
            xgap=2 if labelled else 0.5,
            ygap=2 if named else 0.5,
            text=[[text if labelled else "" for text in row] for row in texts],
            texttemplate="%{text}",
            customdata=[[*row, *[""] * (experts - len(row))] for row in hovers],
            hovertemplate="%{customdata}<extra></extra>",
            **look,
        )
    )
    figure.update_xaxes(title_text="expert", showgrid=False, zeroline=False, dtick=max(1, experts // 16))
    figure.update_yaxes(
        autorange="reversed",
        automargin=True,
        showgrid=False,
        zeroline=False,
        ticks="",
        tickvals=list(range(len(layers))) if named else [],
        ticktext=[f"{layer_name(layer)}  " for layer in layers] if named else [],
    )
    return figure


def are_everywhere(layers: Sequence[dict[str, Any]]) -> bool:
    """Return whether every worker has all experts, so that no rows are exchanged."""
    return all(layer["hosts"] is not None and not any(layer["hosts"]) for layer in layers)


def layer_name(layer: dict[str, Any]) -> str:
    """Return a layer's name in the model, for a figure."""
    return plain_text(layer["name"] or "the model", 24)


def _height(layers: int) -> int:
    return min(560, max(180, 70 + layers * (34 if layers <= _NAMED_LAYERS else 8)))
