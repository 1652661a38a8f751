"""Figures of one run that are not over time: results of deadlines, waits, slack, and decision times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from scheduling.core.question.quantities import duration_text
from scheduling.core.question.snapshot import FloatArray, ServiceClass
from simulation.outcome import JobEnd, RunOutcome
from simulation.reports import measures
from simulation.reports.measures import Fate
from simulation.reports.style import (
    BAD,
    DECLINED,
    GOOD,
    NEUTRAL,
    PROMISED,
    UNPROMISED,
    WARNING,
    Drawing,
    base_figure,
    label_axis,
    log_ticks,
    step_line,
    time_unit,
)

FATES = {
    Fate.MET: ("On time", GOOD),
    Fate.MISSED: ("Missed", BAD),
    Fate.DECLINED: ("Declined", DECLINED),
    Fate.VOID: ("Promise void", NEUTRAL),
    Fate.OPEN: ("Not known yet", WARNING),
}
CLASSES = {ServiceClass.SLO: "SLO", ServiceClass.SOFT: "Soft", ServiceClass.BEST_EFFORT: "Best effort"}
#: Widths of a bar that are easy to read, in seconds.
_WIDTHS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800)
_WANTED_BARS = 40
#: Up to this many decisions are drawn as points; beyond, bins show median and 99th percentile.
_MOST_POINTS = 2_000
_DRAWN_QUANTILES = 500


def fate_bars(labels: Sequence[str], counts: Sequence[dict[Fate, int]]) -> go.Figure:
    """Draw one horizontal bar per label, divided by fate. Fates that never occur are left out."""
    figure = base_figure(
        barmode="stack", margin={"l": 8, "r": 24, "t": 12, "b": 40}, height=125 + 36 * len(labels)
    )
    totals = [sum(each.values()) for each in counts]
    for fate, (name, colour) in FATES.items():
        parts = [each[fate] for each in counts]
        if not any(parts):
            continue
        figure.add_trace(
            go.Bar(
                x=parts, y=list(range(len(labels))), orientation="h", name=name, marker={"color": colour},
                text=[f"{count:,}" if count else "" for count in parts],
                textposition="inside", insidetextanchor="middle", textangle=0, textfont={"color": "#fff"},
                customdata=[count / total for count, total in zip(parts, totals, strict=True)],
                hovertemplate="%{x:,} jobs, %{customdata:.1%}<extra>" + name + "</extra>",
            )
        )  # fmt: skip
    figure.update_xaxes(title_text="jobs", rangemode="tozero")
    label_axis(figure, labels)
    return figure


def fates_by_class(outcome: RunOutcome) -> Drawing:
    """Draw the fates of deadlines by class."""
    note = "Jobs with a deadline, by what came of it; each job is counted once."
    by_fate = measures.fates(outcome)
    labels, counts = [], []
    for service_class in (ServiceClass.SLO, ServiceClass.SOFT):
        chosen = measures.has_class(outcome.jobs, service_class)
        if chosen.any():
            labels.append(CLASSES[service_class])
            counts.append({fate: int((chosen & of).sum()) for fate, of in by_fate.items()})
    figure = fate_bars(labels, counts) if labels else None
    return Drawing("fates", "Deadlines by class", note, figure, "No job had a deadline.", wide=True)


def cumulative_share(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a distribution function: the values at which it is drawn, and the share of values up to each."""
    ordered = np.sort(values)
    shares = np.arange(1, ordered.size + 1) / ordered.size
    kept = np.unique(np.linspace(0, ordered.size - 1, min(ordered.size, _DRAWN_QUANTILES)).astype(np.int64))
    # Start on the axis below the least value.
    return np.append(ordered[:1], ordered[kept]), np.append(0.0, shares[kept])


def queuing_times(outcome: RunOutcome) -> Drawing:
    """Draw the distribution of completed jobs' waits for their first start, by class."""
    note = "Share of completed jobs that started within a time of their submission."
    jobs = outcome.jobs
    started = measures.has_end(jobs, JobEnd.COMPLETED) & np.isfinite(jobs.started_at)
    if not started.any():
        return Drawing("queuing", "Queuing time", note, None, "No job was completed.")
    waited = jobs.started_at - jobs.submitted_at
    unit = time_unit(float(waited[started].max()))
    figure = base_figure()
    colours = (PROMISED, WARNING, UNPROMISED)
    for (service_class, name), colour in zip(CLASSES.items(), colours, strict=True):
        chosen = started & measures.has_class(jobs, service_class)
        if chosen.any():
            at, share = cumulative_share(waited[chosen])
            step_line(figure, unit.of(at), share, name, colour,
                      hovertemplate=f"%{{y:.1%}} within %{{x:.3g}} "
                                    f"{unit.name}<extra>{name}</extra>")  # fmt: skip
    half, most = np.percentile(waited[started], (50, 99))
    figure.update_xaxes(title_text=f"queuing time ({unit.name})", rangemode="tozero")
    figure.update_yaxes(title_text="share of jobs", range=[0, 1.02], tickformat=".0%")
    note += (
        f" Half of all waited at most {duration_text(float(half))}, 99 of 100 at most "
        f"{duration_text(float(most))}."
    )
    return Drawing("queuing", "Queuing time", note, figure)


def slack(outcome: RunOutcome) -> Drawing:
    """Draw a histogram of the time between completion and deadline of promised jobs; late ones left of zero,
    in red."""
    note = "Time between completion and deadline of promised jobs, void promises apart. Left of zero: late."
    seconds = measures.slack_seconds(outcome.jobs)
    if not seconds.size:
        return Drawing("slack", "Slack of promised jobs", note, None, "No promised job was completed.")
    span = max(float(seconds.max()), 0.0) - min(float(seconds.min()), 0.0)
    width = next((each for each in _WIDTHS if span / each <= _WANTED_BARS), math.ceil(span / _WANTED_BARS))
    places = np.floor(seconds / width).astype(np.int64)
    # Within rounding of the deadline is on time, so it must not make a bar left of zero.
    places[(places < 0) & (seconds >= -1e-5)] = 0
    first = int(places.min())
    counts = np.bincount(places - first)
    bars = np.arange(first, first + counts.size)
    unit = time_unit(span)
    figure = base_figure(showlegend=False, bargap=0.08)
    figure.add_trace(
        go.Bar(
            x=(bars + 0.5) * width / unit.seconds,
            y=counts,
            width=width / unit.seconds * 0.92,
            marker={"color": [BAD if place < 0 else PROMISED for place in bars.tolist()]},
            customdata=[
                f"{duration_text(place * width)} to {duration_text((place + 1) * width)}"
                for place in bars.tolist()
            ],
            hovertemplate="%{y:,} jobs<br>%{customdata}<extra></extra>",
        )
    )
    figure.add_vline(x=0, line={"color": BAD, "width": 1.5, "dash": "dash"})
    figure.update_xaxes(title_text=f"slack ({unit.name})", zeroline=False)
    figure.update_yaxes(title_text="jobs", rangemode="tozero")
    return Drawing("slack", "Slack of promised jobs", f"{note} A bar is {duration_text(width)} wide.", figure)


def decision_times(outcome: RunOutcome) -> Drawing:
    """Draw how long decisions took, on a logarithmic scale."""
    title = "Time of a decision"
    note = "Wall time of one decision on the machine that ran the simulation."
    taken = measures.decision_milliseconds(outcome)
    taken = taken[np.isfinite(taken)]
    if not taken.size:
        return Drawing("decisions", title, note, None, "No decision was timed.")
    shortest, longest = float(taken.min()), max(float(taken.max()), float(taken.min()) * 1.01)
    edges = np.geomspace(shortest, longest, 50)
    counts, _ = np.histogram(taken, edges)
    figure = base_figure(showlegend=False)
    step_line(figure, edges, np.append(counts, counts[-1]).astype(np.float64), "decisions", PROMISED,
              fill="tozeroy", hovertemplate="%{y:,.0f} decisions from %{x:.3g} "
                                            "ms<extra></extra>")  # fmt: skip
    half, most = (float(value) for value in np.percentile(taken, (50, 99)))
    for value, dash in ((half, "dash"), (most, "dot")):
        figure.add_vline(x=value, line={"color": NEUTRAL, "width": 1.5, "dash": dash})
    figure.update_xaxes(title_text="milliseconds (logarithmic)", **log_ticks(taken))
    figure.update_yaxes(title_text="decisions", rangemode="tozero")
    note += (
        f" Median {half:.3g} ms (dashed), 99th percentile {most:.3g} ms (dotted), longest {taken.max():.3g} "
        f"ms."
    )
    return Drawing("decisions", title, note, figure)


def decisions_by_active_jobs(outcome: RunOutcome) -> Drawing:
    """Draw decision time over the number of jobs that run or wait."""
    title = "Time of a decision by active jobs"
    note = "Active jobs are those that run or wait when the decision has been taken."
    taken = measures.decision_milliseconds(outcome)
    timed = np.isfinite(taken)
    if not timed.any():
        return Drawing("decision_growth", title, note, None, "No decision was timed.")
    active = (outcome.cluster.jobs_running + outcome.cluster.jobs_waiting)[timed]
    taken = taken[timed]
    figure = base_figure()
    if taken.size <= _MOST_POINTS:
        figure.add_trace(_points(active.astype(np.float32), taken, "One decision", PROMISED, mode="markers",
                                 marker={"size": 5, "opacity": 0.55, "color": PROMISED}))  # fmt: skip
    else:
        at, half, most = _by_bin(active.astype(np.float64), taken)
        for name, values, colour in (("Median", half, PROMISED), ("99th percentile", most, WARNING)):
            figure.add_trace(_points(at, values, name, colour, mode="lines+markers", marker={"size": 5}))
        note += f" {taken.size:,} decisions in {at.size} bins of active jobs."
    figure.update_xaxes(title_text="active jobs", rangemode="tozero")
    figure.update_yaxes(title_text="milliseconds (logarithmic)", **log_ticks(taken))
    return Drawing("decision_growth", title, note, figure)


def _points(x: FloatArray, y: FloatArray, name: str, colour: str, **trace: Any) -> go.Scatter:
    return go.Scatter(
        x=x, y=y.astype(np.float32), name=name, line={"color": colour, "width": 1.5},
        hovertemplate="%{y:.3g} ms with %{x:,.0f} active jobs<extra>" + name + "</extra>", **trace,
    )  # fmt: skip


def _by_bin(active: FloatArray, taken: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return median and 99th percentile in at most 60 bins of active jobs; empty bins are left out."""
    edges = np.linspace(active.min(), active.max() + 1.0, min(60, int(np.ptp(active)) + 1) + 1)
    place = np.clip(np.searchsorted(edges, active, side="right") - 1, 0, edges.size - 2)
    order = np.argsort(place, kind="stable")
    _, begins = np.unique(place[order], return_index=True)
    groups = np.split(taken[order], begins[1:])
    half, most = np.array([np.percentile(group, (50, 99)) for group in groups]).T
    means = np.array([group.mean() for group in np.split(active[order], begins[1:])])
    return means, half, most
