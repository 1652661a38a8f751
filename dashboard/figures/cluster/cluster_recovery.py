"""Protection of training jobs now, recent failures, and the states that jobs recovered from."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.jobs.job_recovery_points import SOURCE_COLOURS
from dashboard.figures.panel import Panel, base_figure
from dashboard.templatetags.punctual_display import duration_text
from scheduling.choices import ProtectionState, RecoveryKind, StateSource
from scheduling.selectors.recovery.recoveries import RecoverySummary, recovery_summary

PROTECTED, FAILED, RECOVERED = "Jobs protected", "Failures", "Recovered from"
_ROWS = [
    *(
        (PROTECTED, state.label, state.value, colour)
        for state, colour in (
            (ProtectionState.FULL, colours.GOOD),
            (ProtectionState.DEGRADED, colours.WARNING),
            (ProtectionState.NONE, colours.BAD),
        )
    ),
    *(
        (FAILED, kind.label, kind.value, colour)
        for kind, colour in (
            (RecoveryKind.SOFTWARE, colours.PROFILING),
            (RecoveryKind.HARDWARE, colours.UNAVAILABLE),
            (RecoveryKind.ANNOUNCED, colours.NEUTRAL),
        )
    ),
    *((RECOVERED, source.label, source.value, SOURCE_COLOURS[source]) for source in StateSource),
]


def figure(summary: RecoverySummary) -> go.Figure | None:
    """Draw three stacked bars of counts."""
    counts = {PROTECTED: summary.protection, FAILED: summary.failures, RECOVERED: summary.recovered}
    if not any(sum(some.values()) for some in counts.values()):
        return None
    drawn = base_figure(barmode="stack", margin={"l": 110, "r": 16, "t": 12, "b": 46})
    for row, label, value, colour in _ROWS:
        count = counts[row][value]
        if count:
            drawn.add_trace(
                go.Bar(
                    y=[row],
                    x=[count],
                    orientation="h",
                    name=f"{row}: {label.lower()}",
                    marker={"color": colour},
                    text=[str(count)],
                    hovertemplate=f"{label}: %{{x}}<extra></extra>",
                )
            )
    most = max(sum(some.values()) for some in counts.values())
    drawn.update_xaxes(
        title_text="jobs", rangemode="tozero", tickformat="d", dtick=max(1, math.ceil(most / 8))
    )
    order = [RECOVERED, FAILED, PROTECTED]
    drawn.update_yaxes(categoryorder="array", categoryarray=order, automargin=True)
    return drawn


def caption(summary: RecoverySummary) -> str:
    """Return the time lost by failures."""
    failures = summary.total_failures()
    text = (
        f"Last {summary.window_seconds / 3600:g} h: {failures} failure{'' if failures == 1 else 's'}, "
        f"{duration_text(summary.time_lost_seconds)} lost: {duration_text(summary.down_seconds)} without "
        f"training, {duration_text(summary.lost_work_seconds)} trained again."
    )
    return f"{text} {summary.under_way} under way." if summary.under_way else text


PANEL = Panel(
    title="Protection and recovery",
    load=lambda request: recovery_summary(request.now),
    figure=figure,
    empty="Nothing trains, and nothing has failed.",
    refresh_on=("jobs", "servers"),
    caption=caption,
    height=220,
)
