"""Runs that lend servers, side by side: loans, and the cost of returning them (Lyra section 3.7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from scheduling.core.question.quantities import duration_text
from simulation.reports.runs import Run, bars_height, line_of, runs_axis
from simulation.reports.steps import steps
from simulation.reports.style import (
    BAD,
    PROMISED,
    WARNING,
    Drawing,
    base_figure,
    label_axis,
    plain_text,
    step_line,
)

NOT_LENT = "No run lends servers."
#: Counts of a run's summary, with their labels and colours.
_COSTS = (
    ("reclaim_operations", "Reclaims", PROMISED),
    ("reclaim_preemptions", "Jobs preempted by them", WARNING),
    ("shortfall_periods", "Periods in which inference missed servers", BAD),
)


def lending_comparison(runs: Sequence[Run], most_steps: int) -> list[Drawing]:
    """Return the figures of the runs that lend; empty ones if none does."""
    lending = [run for run in runs if run.outcome.loans is not None and run.outcome.loans.time.size]
    return [_on_loan(runs, lending, most_steps), _costs(lending)]


def _on_loan(runs: Sequence[Run], lending: Sequence[Run], most_steps: int) -> Drawing:
    title, note = "Servers on loan", "Servers of the inference cluster that training may use."
    if not lending:
        return Drawing("on_loan", title, note, None, NOT_LENT)
    figure, unit, spans = base_figure(), runs_axis(runs), []
    for run in lending:
        loans = run.outcome.loans
        assert loans is not None
        drawn = steps(loans.time, loans.on_loan.astype(np.float64), run.outcome.end_at, most_steps)
        if drawn.span_seconds is not None:
            spans.append(drawn.span_seconds)
        label = plain_text(run.label)
        step_line(figure, unit.of(drawn.time), drawn.values[0], label, run.colour,
        line=line_of(run) | {"width": 1.5},
                  hovertemplate=f"%{{y:.1f}} on loan<extra>{label}</extra>")  # fmt: skip
    figure.update_xaxes(title_text=unit.axis_title)
    figure.update_yaxes(title_text="servers", rangemode="tozero")
    if spans:
        note += (
            f" Long histories are drawn as means over up to {duration_text(max(spans))}, so areas are exact."
        )
    return Drawing("on_loan", title, note, figure)


def _costs(lending: Sequence[Run]) -> Drawing:
    title = "Reclaims and their cost"
    note = (
        "How often servers were asked back, jobs that lost all GPUs by that, and periods in which servers "
        "were missing."
    )
    if not lending:
        return Drawing("reclaims", title, note, None, NOT_LENT)
    figure = base_figure(barmode="group", margin={"l": 8, "r": 60, "t": 12, "b": 40}, bargap=0.3)
    for name, label, colour in _COSTS:
        values = [run.summary[name] for run in lending]
        figure.add_trace(
            go.Bar(
                x=values, y=list(range(len(lending))), orientation="h", name=label, cliponaxis=False,
                marker={"color": colour}, textposition="outside", text=[f"{value:,}" for value in values],
                hovertemplate="%{x:,}<extra>" + label + "</extra>",
            )
        )  # fmt: skip
    figure.update_xaxes(title_text="count", rangemode="tozero")
    label_axis(figure, [run.label for run in lending])
    figure.update_layout(height=bars_height(lending))
    return Drawing("reclaims", title, note, figure)
