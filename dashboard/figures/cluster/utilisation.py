"""GPUs in use over time, split by use."""

from __future__ import annotations

import plotly.graph_objects as go

from cluster.selectors.utilisation import UtilisationSeries, utilisation_series
from dashboard import colours
from dashboard.figures.panel import Panel, base_figure

_USES = {
    "promised": ("Promised", colours.PROMISED),
    "soft": ("Soft deadline", colours.SOFT),
    "best_effort": ("Best effort", colours.BEST_EFFORT),
    "profiling": ("Profiling", colours.PROFILING),
    "changing": ("Changing", colours.CHANGING),
    "idle": ("Idle", colours.IDLE),
    "unavailable": ("Unavailable", colours.UNAVAILABLE),
}


def figure(series: UtilisationSeries) -> go.Figure | None:
    """Draw stacked areas that add up to the GPUs of the cluster. Uses that never occur are omitted."""
    if not series.times:
        return None
    drawn = base_figure(hovermode="x unified")
    for use, (name, colour) in _USES.items():
        values = series.gpus_by_use[use]
        if use != "idle" and not any(values):
            continue
        drawn.add_trace(
            go.Scatter(
                x=series.times,
                y=values,
                name=name,
                stackgroup="gpus",
                mode="lines",
                line={"width": 0.5, "color": colour, "shape": "hv"},
                fillcolor=colour,
                hovertemplate="%{y:.1f}",
            )
        )
    drawn.update_yaxes(title_text="GPUs", rangemode="tozero", range=[0, max(series.total_gpus)])
    drawn.update_xaxes(type="date")
    return drawn


PANEL = Panel(
    title="Utilisation",
    load=lambda request: utilisation_series(request.since, request.now),
    figure=figure,
    empty="Nothing was measured in this time. The planner takes a sample with every tick while it runs.",
    refresh_on=("planned",),
    note="GPUs by what they are used for (UTC).",
)
