"""Usage of an inference cluster over time, with its forecasts and the reserve that is never lent."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure, plain_text
from dashboard.templatetags.punctual_display import duration_text
from lending.core.history import UsagePoint
from lending.selectors.history import UsageHistory, usage_history

MOST_SOURCES = 3


def figure(history: UsageHistory) -> go.Figure | None:
    """Draw usage as steps, each over the period before its point, forecasts as dotted steps, and samples with
    missing servers in red."""
    if not history.samples and not history.forecasts:
        return None
    drawn = base_figure(legend={"y": 1.04})
    if history.servers:
        _add_home(drawn, history)
        _add_headroom(drawn, history)
    drawn.add_trace(
        go.Scatter(
            x=[point.ends_at for point in history.samples],
            y=[point.usage for point in history.samples],
            name="Usage",
            mode="lines",
            line={"color": colours.PROMISED, "width": 2, "shape": "vh"},
            hovertemplate="%{y:.1%}<br>period until %{x|%H:%M:%S} UTC<extra>usage</extra>",
        )
    )
    drawn.add_trace(
        go.Scatter(
            x=[point.ends_at for point in history.forecasts],
            y=[point.usage for point in history.forecasts],
            name="Forecast",
            mode="lines",
            line={"color": colours.CHANGING, "width": 2, "dash": "dot", "shape": "vh"},
            customdata=[plain_text(point.forecaster or "mean of several") for point in history.forecasts],
            hovertemplate="%{y:.1%} expected by %{customdata}<br>"
            "period until %{x|%H:%M:%S} UTC<extra>forecast</extra>",
        )
    )
    _add_shortfalls(drawn, [point for point in history.samples if point.shortfall_servers])
    drawn.update_yaxes(title_text="share of GPUs", range=[0, 1.03], tickformat=".0%")
    drawn.update_xaxes(type="date")
    return drawn


def _add_home(drawn: go.Figure, history: UsageHistory) -> None:
    """Add the share of servers at home: usage above it is a shortfall."""
    drawn.add_trace(
        go.Scatter(
            x=[point.ends_at for point in history.samples],
            y=[1.0 - point.away_servers / history.servers for point in history.samples],
            name="Servers at home",
            mode="lines",
            line={"width": 0, "shape": "vh"},
            fill="tozeroy",
            fillcolor=colours.IDLE,
            hovertemplate="%{y:.0%} of the servers<extra>at home</extra>",
        )
    )


def _add_headroom(drawn: go.Figure, history: UsageHistory) -> None:
    """Add the line above which nothing is lent, at any usage."""
    share = 1.0 - history.reserve / history.servers
    drawn.add_hline(y=share, line={"color": colours.NEUTRAL, "width": 1, "dash": "dash"})
    drawn.add_annotation(
        x=0, xref="paper", xanchor="left", y=share, yanchor="top", showarrow=False,
        text=f"headroom: {history.reserve} of {history.servers} servers never lent",
        font={"size": 11, "color": colours.NEUTRAL},
    )  # fmt: skip


def _add_shortfalls(drawn: go.Figure, missing: list[UsagePoint]) -> None:
    if not missing:
        return
    drawn.add_trace(
        go.Scatter(
            x=[point.ends_at for point in missing],
            y=[point.usage for point in missing],
            name="Shortfall",
            mode="markers",
            marker={"color": colours.BAD, "size": 8, "symbol": "triangle-up"},
            customdata=[_missing_text(point) for point in missing],
            hovertemplate="%{customdata}<br>period until %{x|%H:%M:%S} UTC<extra>shortfall</extra>",
        )
    )


def _missing_text(point: UsagePoint) -> str:
    text = f"{point.shortfall_servers} server{'s' if point.shortfall_servers != 1 else ''} missing at home"
    if point.seen_shortfall_servers is not None:
        text += f" ({point.seen_shortfall_servers} as the inference side saw it)"
    return text


def caption(history: UsageHistory) -> str:
    """Return a description of the samples."""
    text = (
        f"Mean share of the cluster's {history.gpus} GPUs that served requests, per "
        f"{duration_text(history.period_seconds)} as its scheduler reported it (UTC)."
    )
    if history.periods_per_point > 1:
        text += (
            f" Each point is the mean of {history.periods_per_point} periods, with the worst shortfall among "
            f"them."
        )
    if history.gpus and history.emulated_gpus == history.gpus:
        text += (
            " All of these GPUs are emulated: the load is an emulated one, and no real requests stand behind "
            "it."
        )
    elif history.emulated_gpus:
        text += f" {history.emulated_gpus} of these GPUs are emulated and serve no real requests."
    return text + _sources_text(history.sources)


def _sources_text(sources: Sequence[str]) -> str:
    """Return the sources that the samples name, so that substitutes are not mistaken for measurements."""
    if not sources:
        return ""
    named = [source or "not stated" for source in sources]
    more = f" and {len(named) - MOST_SOURCES} more" if len(named) > MOST_SOURCES else ""
    return f" Source of the samples: {'; '.join(named[:MOST_SOURCES])}{more}."


PANEL = Panel(
    title="Inference usage",
    load=lambda request: usage_history(request.the_inference_cluster(), request.since, request.now),
    figure=figure,
    empty="No usage was reported in this time. Its scheduler reports it, or the emulator does: "
    "PUNCTUAL_INFERENCE_AGENTS=2 make run (docs/lending.md).",
    refresh_on=("usage",),
    caption=caption,
    height=300,
)
