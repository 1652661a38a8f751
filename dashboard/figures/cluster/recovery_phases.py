"""The phases of one recovery as a timeline, with the time of the fence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, PanelRequest, base_figure, mark_time
from recovery.life_cycle.facts import RecoveryPhase
from scheduling.core.question.quantities import duration_text
from scheduling.selectors.recovery.recoveries import PhaseSpan, phase_spans

#: What each phase waits for, and its colour.
PHASE_LOOKS = {
    RecoveryPhase.DETECTED: ("Detected: old workers stop, lost servers are fenced", colours.UNAVAILABLE),
    RecoveryPhase.FROZEN: ("Frozen: GPUs are found", colours.CHANGING),
    RecoveryPhase.RESOURCED: ("Resourced: sources are chosen", colours.SOFT),
    RecoveryPhase.SOURCES_CHOSEN: ("Sources chosen: workers receive them", colours.PROMISED),
    RecoveryPhase.STARTING: ("Starting: processes, models, connections", colours.NEUTRAL),
    RecoveryPhase.LOADING: ("Loading: the state is fetched and taken", colours.PROFILING),
    RecoveryPhase.VERIFIED: ("Verified: the first iteration", colours.BEST_EFFORT),
}


@dataclass(frozen=True)
class PhasesShown:
    """One recovery's phases."""

    spans: list[PhaseSpan]
    fenced_at: datetime | None
    running_at: datetime | None
    now: datetime


def load(request: PanelRequest) -> PhasesShown:
    """Return the phases known now."""
    found = request.the_recovery()
    return PhasesShown(phase_spans(found), found.fenced_at, found.running_at, request.now)


def figure(data: PhasesShown) -> go.Figure | None:
    """Draw a bar for each phase on a time axis, with marks at the fence and at the first iteration."""
    if not data.spans:
        return None
    drawn = base_figure(margin={"l": 120, "r": 24, "t": 28, "b": 46}, showlegend=False, barmode="overlay")
    names = [span.phase.value.replace("_", " ").capitalize() for span in data.spans]
    texts = [PHASE_LOOKS[span.phase][0] for span in data.spans]
    drawn.add_trace(
        go.Bar(
            y=names,
            base=[span.start for span in data.spans],
            x=[span.seconds(data.now) * 1000.0 for span in data.spans],
            orientation="h",
            marker={"color": [PHASE_LOOKS[span.phase][1] for span in data.spans]},
            text=[duration_text(span.seconds(data.now)) for span in data.spans],
            textposition="auto",
            customdata=texts,
            hovertemplate="%{customdata}<br>%{text}<br>from %{base|%H:%M:%S.%L} UTC<extra></extra>",
        )
    )
    if data.fenced_at is not None:
        mark_time(drawn, data.fenced_at, "fenced", colours.BAD, side="right")
    if data.running_at is not None:
        mark_time(drawn, data.running_at, "trains again", colours.GOOD, side="left")
    drawn.update_xaxes(type="date")
    drawn.update_yaxes(autorange="reversed", automargin=True)
    return drawn


PANEL = Panel(
    title="Phases",
    load=load,
    figure=figure,
    empty="No phase was recorded.",
    refresh_on=("changed", "metrics"),
    note="A phase lasts until the next one begins. Times are those of the agents' reports.",
    height=300,
)
