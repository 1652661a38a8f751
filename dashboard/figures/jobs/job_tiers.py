"""Share of expert states found in host memory, and the time that training waits for those in files."""

from __future__ import annotations

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure
from scheduling.selectors.jobs.job_page import MetricSeries, metric_series

PREFIX = "moe/tier_"
_HITS, _STALLS = f"{PREFIX}hits", f"{PREFIX}stall_seconds"
_READ, _WRITTEN = f"{PREFIX}bytes_read", f"{PREFIX}bytes_written"


def figure(series: MetricSeries) -> go.Figure | None:
    """Draw hits as a share of accesses, and each iteration's stall on a second axis."""
    if _HITS not in series.values:
        return None
    drawn = base_figure(
        hovermode="x unified",
        yaxis={"title": {"text": "hits"}, "tickformat": ".0%", "range": [0, 1.03]},
        yaxis2={
            "title": {"text": "s"}, "overlaying": "y", "side": "right", "rangemode": "tozero",
            "showgrid": False,
        },
        margin={"l": 52, "r": 52, "t": 12, "b": 46},
    )  # fmt: skip
    lines = (
        ("Found in host memory", _HITS, colours.PROMISED, "y", "%{y:.1%}"),
        ("Waited for states", _STALLS, colours.BAD, "y2", "%{y:.3g} s"),
    )
    for name, metric, colour, axis, hover in lines:
        drawn.add_trace(
            go.Scatter(
                x=series.iterations,
                y=series.values.get(metric, []),
                name=name,
                mode="lines",
                connectgaps=True,
                yaxis=axis,
                line={"color": colour, "width": 2},
                hovertemplate=hover,
            )
        )
    drawn.update_xaxes(title_text="iteration")
    return drawn


def caption(series: MetricSeries) -> str:
    """Return the means of the iterations that are drawn."""
    means = {name: _mean(series.values.get(name, [])) for name in (_HITS, _STALLS, _READ, _WRITTEN)}
    return (
        f"Means of an iteration: {means[_HITS]:.0%} of the states were found in host memory; a worker waited "
        f"{means[_STALLS]:.3g} s; all workers read {means[_READ] / 1e6:,.1f} MB from disk and wrote "
        f"{means[_WRITTEN] / 1e6:,.1f} MB."
    )


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 0.0


PANEL = Panel(
    title="Experts in tiers",
    load=lambda request: metric_series(request.the_job()),
    figure=figure,
    empty="No experts of this job are in tiers.",
    refresh_on=("metrics", "changed"),
    caption=caption,
    is_absent=lambda series: _HITS not in series.values,
)
