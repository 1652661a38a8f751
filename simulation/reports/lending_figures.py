"""Figures of servers on loan: usage with its forecast, loans, reclaims with their cost, and both clusters
together."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from scheduling.core.question.snapshot import FloatArray
from simulation.loans import LoanHistory
from simulation.outcome import RunOutcome
from simulation.reports.lending import usages
from simulation.reports.steps import steps
from simulation.reports.style import (
    BAD,
    GOOD,
    IDLE,
    NEUTRAL,
    PROMISED,
    UNPROMISED,
    WARNING,
    Drawing,
    TimeUnit,
    base_figure,
    step_line,
    time_axis,
)

NOT_RECLAIMED = "No server was asked back."


def lending_drawings(outcome: RunOutcome, most_steps: int) -> list[Drawing]:
    """Return the figures of a run in which servers could be lent; none for other runs."""
    loans = outcome.loans
    if loans is None or not loans.time.size:
        return []
    unit = time_axis(outcome)
    return [
        inference_usage(loans, unit, outcome.end_at, most_steps),
        servers_on_loan(loans, unit, outcome.end_at, most_steps),
        combined_usage(loans, unit, outcome.end_at, most_steps),
        reclaims(loans, unit),
    ]


def inference_usage(loans: LoanHistory, unit: TimeUnit, end_at: float, most_steps: int) -> Drawing:
    """Draw usage of the inference cluster, its forecast, and the share that may not be lent."""
    note = (
        "Share of the inference cluster's GPUs that serve requests, as measured over the period before and "
        f"as it was expected for the next. Grey: usage and the {loans.headroom:.0%} that are never lent."
    )
    time, (usage, expected, kept) = _thinned(
        loans,
        (loans.usage, loans.forecast, np.minimum(1.0, loans.usage + loans.headroom)),
        end_at,
        most_steps,
    )
    figure = base_figure(hovermode="x unified")
    lines = (
        ("Usage and headroom", kept, NEUTRAL, 1.0), ("Measured", usage, PROMISED, 2.0),
        ("Expected", expected, WARNING, 1.2),
    )  # fmt: skip
    for name, values, colour, width in lines:
        if np.isfinite(values).any():
            step_line(
                figure, unit.of(time), values, name, colour,
                line={"color": colour, "width": width, "shape": "hv"},
                hovertemplate="%{y:.1%}",
            )  # fmt: skip
    _axes(figure, unit, "share of GPUs", ".0%")
    return Drawing("inference-usage", "Usage of the inference cluster", note, figure, wide=True)


def servers_on_loan(loans: LoanHistory, unit: TimeUnit, end_at: float, most_steps: int) -> Drawing:
    """Draw the inference cluster's servers by state, and its shortfall."""
    note = (
        "Servers of the inference cluster: at home, on loan and in use by training, on loan and idle. Red: "
        "servers that it missed."
    )
    before = loans.on_loan_before.astype(np.float64)
    used = np.minimum(before, np.ceil(loans.lent_gpus_busy / loans.gpus_per_server))
    time, (busy, idle, short) = _thinned(
        loans, (used, before - used, loans.shortfall.astype(np.float64)), end_at, most_steps
    )
    figure = base_figure(hovermode="x unified")
    for name, values, colour in (
        ("In use by training", busy, UNPROMISED),
        ("On loan, idle", idle, WARNING),
        ("At home", loans.servers - busy - idle, IDLE),
    ):
        step_line(
            figure, unit.of(time), values, name, colour, stackgroup="servers", fillcolor=colour,
            line={"width": 0, "color": colour, "shape": "hv"}, hovertemplate="%{y:.1f}",
        )  # fmt: skip
    if loans.shortfall.any():
        step_line(figure, unit.of(time), short, "Missed by inference", BAD, hovertemplate="%{y:.1f}")
    _axes(figure, unit, "servers", None)
    return Drawing("servers-on-loan", "Servers on loan", note, figure, wide=True)


def combined_usage(loans: LoanHistory, unit: TimeUnit, end_at: float, most_steps: int) -> Drawing:
    """Draw usage of both clusters, separately and together."""
    note = (
        "Share of GPUs in use: owned ones, those on loan, and all GPUs of both clusters with those that "
        "serve requests."
    )
    owned, lent, overall = usages(loans)
    time, (owned, lent, overall) = _thinned(loans, (owned, lent, overall), end_at, most_steps)
    figure = base_figure(hovermode="x unified")
    for name, values, colour in (
        ("Owned", owned, PROMISED), ("On loan", lent, UNPROMISED), ("Both clusters", overall, GOOD),
    ):  # fmt: skip
        if np.isfinite(values).any():
            step_line(figure, unit.of(time), values, name, colour, hovertemplate="%{y:.1%}",
                      line={"color": colour, "width": 1.5, "shape": "hv"})  # fmt: skip
    _axes(figure, unit, "share of GPUs", ".0%")
    return Drawing("combined-usage", "Usage of both clusters", note, figure, wide=True)


def reclaims(loans: LoanHistory, unit: TimeUnit) -> Drawing:
    """Draw every reclaim: servers asked for, and the cost of returning them."""
    note = (
        "One point a reclaim: servers asked back, and jobs preempted for them. The larger a point, the more "
        "GPUs those jobs gave up on servers that stayed (collateral damage)."
    )
    if not loans.reclaims:
        return Drawing("reclaims", "Reclaims and their cost", note, None, NOT_RECLAIMED)
    figure = base_figure()
    ahead = np.array([one.ahead for one in loans.reclaims])
    for name, chosen, colour in (("Usage rose", ~ahead, PROMISED), ("By forecast alone", ahead, WARNING)):
        rows = [one for one, taken in zip(loans.reclaims, chosen, strict=True) if taken]
        if not rows:
            continue
        figure.add_trace(
            go.Scatter(
                x=[one.wanted for one in rows], y=[one.preempted for one in rows], mode="markers", name=name,
                marker={"color": colour, "opacity": 0.55,
                "size": [5.0 + min(20.0, one.collateral_gpus / 4) for one in rows]},
                customdata=[
                    [float(unit.of(np.array([one.at]))[0]), one.idle, one.flexible,
                    one.collateral_gpus] for one in rows
                ],
                hovertemplate=f"%{{x}} servers, %{{y}} jobs preempted<br>{unit.name} %{{customdata[0]:.1f}}, "
                              f"%{{customdata[1]}} idle,"
                " %{customdata[2]} by shrinking, %{customdata[3]} GPUs of collateral<extra></extra>",
            )
        )  # fmt: skip
    figure.update_xaxes(title_text="servers asked back", rangemode="tozero")
    figure.update_yaxes(title_text="jobs preempted", rangemode="tozero")
    return Drawing("reclaims", "Reclaims and their cost", note, figure)


def _thinned(
    loans: LoanHistory, columns: tuple[FloatArray, ...], end_at: float, most_steps: int
) -> tuple[FloatArray, FloatArray]:
    drawn = steps(
        loans.time, np.array(columns, dtype=np.float64), max(end_at, float(loans.time[-1])), most_steps
    )
    return drawn.time, drawn.values


def _axes(figure: go.Figure, unit: TimeUnit, title: str, form: str | None) -> None:
    figure.update_xaxes(title_text=unit.axis_title)
    figure.update_yaxes(title_text=title, rangemode="tozero", tickformat=form)
