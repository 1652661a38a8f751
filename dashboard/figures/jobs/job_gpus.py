"""GPUs of one job over time: actual, planned and promised."""

from __future__ import annotations

import math
from datetime import datetime

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure, mark_time, plain_text
from scheduling.selectors.jobs.job_page import GpusOverTime, gpus_over_time
from scheduling.selectors.jobs.job_times import PlannedPiece


def figure(data: GpusOverTime) -> go.Figure | None:
    """Draw steps: actual filled, planned dashed, and the minimum satisfactory share as a thin line."""
    if not data.actual and not data.planned and not data.promised:
        return None
    drawn = base_figure(margin={"l": 52, "r": 20, "t": 28, "b": 46})
    times, gpus, reasons = _actual_steps(data)
    if times:
        drawn.add_trace(
            go.Scatter(
                x=times,
                y=gpus,
                name="Had",
                mode="lines",
                line={"color": colours.GOOD, "width": 2, "shape": "hv"},
                fill="tozeroy",
                fillcolor="rgba(46, 139, 87, 0.18)",
                customdata=reasons,
                hovertemplate="%{y} GPUs<br>%{x|%H:%M:%S} UTC<br>%{customdata}<extra></extra>",
            )
        )
    _add_pieces(drawn, data.planned, "Planned", colours.PROMISED, "dash", 2.0)
    _add_pieces(drawn, data.promised, "Minimum satisfactory share", colours.NEUTRAL, "dot", 1.5)
    if data.deadline_at is not None:
        mark_time(drawn, data.deadline_at, "deadline", colours.BAD)
    most = max([phase.gpus for phase in data.actual] + [piece.gpus for piece in data.planned + data.promised])
    drawn.update_yaxes(
        title_text="GPUs", rangemode="tozero", tickformat="d", dtick=max(1, math.ceil(most / 6))
    )
    drawn.update_xaxes(type="date")
    drawn.update_layout(legend={"y": 1.1})
    return drawn


def _actual_steps(data: GpusOverTime) -> tuple[list[datetime], list[int], list[str]]:
    times: list[datetime] = []
    gpus: list[int] = []
    reasons: list[str] = []
    for number, phase in enumerate(data.actual):
        times.append(phase.since)
        gpus.append(phase.gpus)
        reasons.append(plain_text(phase.reason, 90))
        following = data.actual[number + 1].since if number + 1 < len(data.actual) else None
        end = phase.until or data.now
        # The old generation trains until the new one does, so only a real gap is drawn as zero.
        if following is None or end < following:
            times.append(end)
            gpus.append(0 if phase.until is not None else phase.gpus)
            reasons.append("")
    return times, gpus, reasons


def _add_pieces(
    drawn: go.Figure, pieces: list[PlannedPiece], name: str, colour: str, dash: str, width: float
) -> None:
    if not pieces:
        return
    times = [piece.start for piece in pieces] + [pieces[-1].end]
    gpus = [piece.gpus for piece in pieces] + [0]
    drawn.add_trace(
        go.Scatter(
            x=times,
            y=gpus,
            name=name,
            mode="lines",
            line={"color": colour, "width": width, "dash": dash, "shape": "hv"},
            hovertemplate=f"%{{y}} GPUs<br>%{{x|%H:%M:%S}} UTC<extra>{name}</extra>",
        )
    )


PANEL = Panel(
    title="GPUs over time",
    load=lambda request: gpus_over_time(request.user, request.the_job(), request.now),
    figure=figure,
    empty="The job has had no GPU yet, and no plan gives it one so far.",
    refresh_on=("changed",),
    note="GPUs it trained on, the plan from here, and the share that the promise rests on (UTC).",
)
