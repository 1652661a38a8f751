"""The measured scaling curve of a job's function."""

from __future__ import annotations

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure, plain_text
from scheduling.core.question.quantities import memory_text
from scheduling.models import CurveLevel
from scheduling.selectors.jobs.scaling_curve import Curve, curve

#: Plan families in words.
_NAMES = {"dense": "no plan", "lossless": "lossless plans", "lossy": "lossy plans"}
_DASHES = ("dash", "dot", "dashdot")


def figure(data: Curve | None) -> go.Figure | None:
    """Draw throughput by GPUs, perfect scaling of the smallest level, and levels measured under other
    communication plans. Only measured levels are points."""
    if data is None or not data.levels:
        return None
    drawn = base_figure()
    gpus = [level.gpus for level in data.levels]
    rates = [level.iterations_per_second for level in data.levels]
    perfect = [rates[0] / gpus[0] * count for count in gpus]
    drawn.add_trace(
        go.Scatter(
            x=gpus,
            y=perfect,
            name="Perfect scaling",
            mode="lines",
            line={"color": colours.NEUTRAL, "width": 1, "dash": "dot"},
            hoverinfo="skip",
        )
    )
    drawn.add_trace(
        go.Scatter(
            x=gpus,
            y=rates,
            name=f"Measured, {_NAMES.get(data.family, data.family)}" if data.others else "Measured",
            mode="lines+markers",
            line={"color": colours.PROMISED, "width": 2},
            marker={
                "size": [14 if level.gpus == data.gpus_now else 9 for level in data.levels],
                "color": [
                    colours.GOOD if level.gpus == data.gpus_now else colours.PROMISED for level in data.levels
                ],
                "symbol": [_symbol(level.source, level.void) for level in data.levels],
            },
            customdata=[
                [
                    f"{rate / ideal:.0%}",
                    level.samples,
                    level.source,
                    _doubt(level.source, level.overrun if level.void else None),
                    _reserved(level.reserved_memory_bytes),
                ]
                for rate, ideal, level in zip(rates, perfect, data.levels, strict=True)
            ],
            hovertemplate="%{x} GPUs: %{y:.2f} iterations/s<br>%{customdata[0]} of perfect scaling"
            "<br>%{customdata[1]} samples, %{customdata[2]}%{customdata[4]}%{customdata[3]}<extra></extra>",
        )
    )
    for number, (family, levels) in enumerate(data.others.items()):
        drawn.add_trace(_other_family(family, levels, _DASHES[number % len(_DASHES)]))
        gpus = sorted({*gpus, *(level.gpus for level in levels)})
    drawn.update_xaxes(title_text="GPUs", type="log", tickvals=gpus, ticktext=[str(count) for count in gpus])
    drawn.update_yaxes(title_text="iterations/s", rangemode="tozero")
    return drawn


def _other_family(family: str, levels: list[CurveLevel], dash: str) -> go.Scatter:
    name = _NAMES.get(family, plain_text(family, 40))
    return go.Scatter(
        x=[level.gpus for level in levels],
        y=[level.iterations_per_second for level in levels],
        name=f"Measured, {name}",
        mode="lines+markers",
        line={"color": colours.BEST_EFFORT, "width": 1, "dash": dash},
        marker={"size": 7, "symbol": [_symbol(level.source, level.void) for level in levels]},
        hovertemplate="%{x} GPUs: %{y:.2f} iterations/s, " + name + "<extra></extra>",
    )


def _symbol(source: str, void: bool) -> str:
    if source == "live":
        return "circle"
    return "x-thin-open" if void else "circle-open"


def _reserved(size_bytes: int) -> str:
    """Return the hover text for the host memory of a level's workers."""
    return f"<br>{memory_text(size_bytes)} of host memory for each worker" if size_bytes else ""


def _doubt(source: str, overrun: float | None) -> str:
    """Return the hover text for a level whose measurement is void because of this overrun."""
    if overrun is None or source == "live":
        return ""
    return f"<br>void for the emulated GPU: the host was {overrun:.0%} slower"


PANEL = Panel(
    title="Scaling curve",
    load=lambda request: curve(request.the_job()),
    figure=figure,
    empty="Not measured yet. A new function runs a few iterations at 1, 2, 4, … GPUs before it is decided.",
    refresh_on=("changed",),
    note="Filled points were refined from real runs, open ones profiled; green is where the job runs now. "
    "A cross marks a level at which the host was too slow to emulate the GPU. Further lines show the speed "
    "with other communication plans.",
)
