"""Several runs side by side: labels, the table of metrics with the best marked, and overlaid figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from scheduling.core.question.quantities import duration_text
from scheduling.core.question.snapshot import FloatArray
from simulation.outcome import RunOutcome
from simulation.reports import measures
from simulation.reports.distributions import cumulative_share, fate_bars
from simulation.reports.lending_comparison import lending_comparison
from simulation.reports.measures import Fate
from simulation.reports.metrics import TableRow, table_rows
from simulation.reports.runs import Run, bars_height, labels, line_of, runs_axis, runs_of
from simulation.reports.steps import running_counts, steps
from simulation.reports.style import (
    PALETTE,
    PROMISED,
    PROMISED_PALE,
    UNPROMISED,
    Drawing,
    base_figure,
    label_axis,
    log_ticks,
    made_how,
    plain_text,
    step_line,
    time_unit,
)

#: Overlaid lines show shape only: fewer, calmer steps than in the figures of one run.
_OVERLAID_STEPS = 240


def differences(outcomes: Sequence[RunOutcome]) -> list[str]:
    """Return what makes runs incomparable, in sentences: other jobs, or a run that was stopped early."""
    if len(outcomes) < 2:
        return []
    found = []
    first = outcomes[0].jobs
    for outcome in outcomes[1:]:
        jobs = outcome.jobs
        if jobs.job_id != first.job_id or not np.array_equal(jobs.submitted_at, first.submitted_at):
            found.append("These runs are not of the same jobs, so no best value is marked.")
            break
        if not np.array_equal(jobs.deadline_at, first.deadline_at):
            found.append("The jobs' deadlines differ between these runs, so no best value is marked.")
            break
    stopped = [
        label for label, outcome in zip(labels(outcomes), outcomes, strict=True) if outcome.interrupted
    ]
    if stopped:
        found.append(f"Stopped early, so no best value is marked: {'; '.join(stopped)}.")
    return found


def metric_table(runs: Sequence[Run]) -> list[TableRow]:
    """Return every metric for every run, the best marked if the runs can be compared."""
    comparable = len(runs) > 1 and not differences([run.outcome for run in runs])
    return table_rows([run.summary for run in runs], mark_best=comparable)


def comparison(outcomes: Sequence[RunOutcome]) -> dict[str, Any]:
    """Return runs side by side as plain JSON: ``{"runs", "figures", "table", "warnings"}``.

    ``runs``: the summary of each with its ``label``. ``figures``: by name, Plotly's JSON (``data`` and
    ``layout``), where ``layout.meta`` holds ``title``, ``note``, ``made`` and, for a figure without
    anything to draw, ``empty``. ``table``: rows of ``{name, label, better, cells: [{text, best}]}``. The
    outcomes may come from a simulation or from Parquet. Raises ValueError without any outcome.
    """
    runs = runs_of(outcomes)
    made = made_how_all(outcomes)
    return {
        "runs": [{"label": run.label, **run.summary} for run in runs],
        "figures": {drawing.name: drawing.as_json(made) for drawing in comparison_drawings(runs)},
        "table": [row.as_json() for row in metric_table(runs)],
        "warnings": differences(outcomes),
    }


def made_how_all(outcomes: Sequence[RunOutcome]) -> str:
    """Return the origin of figures of several runs: their common settings and the number of runs."""
    common = dict(outcomes[0].settings)
    for outcome in outcomes[1:]:
        common = {name: value for name, value in common.items() if outcome.settings.get(name) == value}
    shared = replace(outcomes[0], settings=common, interrupted=False)
    return made_how(shared) + (f" · {len(outcomes)} runs" if len(outcomes) > 1 else "")


def comparison_drawings(runs: Sequence[Run]) -> list[Drawing]:
    """Return the figures of a comparison, in the order of the page."""
    return [
        _fates(runs),
        _ratios(runs),
        _on_time(runs),
        _over_time(runs, "utilisation", "GPUs in use", "share of GPUs", ".0%", _utilisation,
                   "Share of the cluster's GPUs, borrowed ones included, that jobs hold."),
        _over_time(runs, "efficiency", "Cluster efficiency", "efficiency", ".2f", _efficiency,
                   "Sum of all jobs' speed-ups over the cluster's own GPUs: with servers on loan it can be "
                   "above 1."),
        _over_time(runs, "waiting", "Waiting jobs", "jobs", ",.0f", _waiting,
                   "Admitted jobs that hold no GPU. A policy that declines has fewer of them."),
        _queuing(runs),
        _best_effort(runs),
        *lending_comparison(runs, _OVERLAID_STEPS),
        _decision_times(runs),
    ]  # fmt: skip


def _fates(runs: Sequence[Run]) -> Drawing:
    title, note = "Deadlines", "SLO jobs by what came of their deadline; each job is counted once."
    dated = [run for run in runs if run.summary["slo_jobs"]]
    if not dated:
        return Drawing("fates", title, note, None, "No run has SLO jobs.", wide=True)
    counts = [{fate: run.summary["fates"]["slo"][fate.value] for fate in Fate} for run in dated]
    return Drawing("fates", title, note, fate_bars([run.label for run in dated], counts), wide=True)


def _ratios(runs: Sequence[Run]) -> Drawing:
    title = "Deadline satisfactory ratio"
    note = (
        "SLO jobs on time of all submitted: declined and late ones are misses. Paler: of promised jobs "
        "alone. A line: no schedule that knew the future could be beyond it."
    )
    dated = [run for run in runs if run.summary["slo_jobs"]]
    if not dated:
        return Drawing("ratios", title, note, None, "No run has SLO jobs.")
    figure = base_figure(barmode="group", margin={"l": 8, "r": 60, "t": 12, "b": 40}, bargap=0.3)
    bars = (
        ("Of all SLO jobs", [run.summary["deadline_satisfactory_ratio"] for run in dated], PROMISED),
        ("Of promised jobs", [_kept(run.outcome) for run in dated], PROMISED_PALE),
    )
    for name, values, colour in bars:
        figure.add_trace(
            go.Bar(
                x=values, y=list(range(len(dated))), orientation="h", name=name, cliponaxis=False,
                marker={"color": colour}, textposition="outside",
                text=["" if value is None else f"{value:.1%}" for value in values],
                hovertemplate="%{x:.2%}<extra>" + name + "</extra>",
            )
        )  # fmt: skip
    _mark_bounds(figure, dated)
    figure.update_xaxes(range=[0, 1], tickformat=".0%")
    label_axis(figure, [run.label for run in dated])
    figure.update_layout(height=bars_height(runs))
    return Drawing("ratios", title, note, figure)


def _mark_bounds(figure: go.Figure, runs: Sequence[Run]) -> None:
    """Draw a line across each run's bars at the relaxation's bound for its workload
    (`scheduling/core/elasticflow/relaxation.py`)."""
    found = [(place, run.summary.get("deadlines_met_bound")) for place, run in enumerate(runs)]
    bounds = [(place, bound / runs[place].summary["slo_jobs"]) for place, bound in found if bound is not None]
    if not bounds:
        return
    figure.add_trace(
        go.Scatter(
            x=[share for _, share in bounds], y=[place for place, _ in bounds], mode="markers", name="Bound",
            marker={"symbol": "line-ns-open", "size": 22, "line": {"width": 2}, "color": UNPROMISED},
            hovertemplate="no schedule beyond %{x:.2%}<extra>Bound</extra>",
        )
    )  # fmt: skip


def _kept(outcome: RunOutcome) -> float | None:
    """Return the share of promises kept, without void and open ones; None without promises."""
    promised, by_fate = measures.is_promised(outcome.jobs), measures.fates(outcome)
    kept, broken = int((promised & by_fate[Fate.MET]).sum()), int((promised & by_fate[Fate.MISSED]).sum())
    return kept / (kept + broken) if kept + broken else None


def _on_time(runs: Sequence[Run]) -> Drawing:
    # As tall as the bars beside it.
    figure, unit = base_figure(height=bars_height(runs)), runs_axis(runs)
    for run in runs:
        jobs = run.outcome.jobs
        met = jobs.completed_at[measures.fates(run.outcome)[Fate.MET]]
        start = float(jobs.submitted_at.min()) if jobs.job_id else 0.0
        counted = running_counts([met], start, run.outcome.end_at, 4 * _OVERLAID_STEPS)
        label = plain_text(run.label)
        step_line(figure, unit.of(counted.time), counted.counts[0].astype(np.float64), label, run.colour,
                  line=line_of(run),
                  hovertemplate="%{y:,.0f} on time<extra>" + label + "</extra>")  # fmt: skip
    figure.update_xaxes(title_text=unit.axis_title)
    figure.update_yaxes(title_text="jobs on time", rangemode="tozero")
    return Drawing(
        "on_time", "Jobs on time", "Jobs completed by their deadline, counted from the start.", figure
    )


def _over_time(
    runs: Sequence[Run], name: str, title: str, axis: str, form: str,
    values: Callable[[RunOutcome], FloatArray], note: str,
) -> Drawing:  # fmt: skip
    figure, unit, spans = base_figure(), runs_axis(runs), []
    for run in runs:
        cluster = run.outcome.cluster
        if not cluster.time.size:
            continue
        drawn = steps(cluster.time, values(run.outcome), run.outcome.end_at, _OVERLAID_STEPS)
        if drawn.span_seconds is not None:
            spans.append(drawn.span_seconds)
        label = plain_text(run.label)
        step_line(figure, unit.of(drawn.time), drawn.values[0], label, run.colour,
        line=line_of(run) | {"width": 1.5},
                  hovertemplate=f"%{{y:{form}}}<extra>{label}</extra>")  # fmt: skip
    if not figure.data:
        return Drawing(name, title, note, None, "No run reached a planning instant.")
    figure.update_xaxes(title_text=unit.axis_title)
    figure.update_yaxes(title_text=axis, rangemode="tozero", tickformat=form)
    if spans:
        note += (
            f" Long histories are drawn as means over up to {duration_text(max(spans))}, so areas are exact."
        )
    return Drawing(name, title, note, figure)


def _utilisation(outcome: RunOutcome) -> FloatArray:
    cluster = outcome.cluster
    used: FloatArray = np.divide(
        measures.gpus_used(cluster), cluster.gpus, out=np.full(cluster.time.size, np.nan),
        where=cluster.gpus > 0
    )  # fmt: skip
    return used


def _efficiency(outcome: RunOutcome) -> FloatArray:
    return outcome.cluster.cluster_efficiency


def _waiting(outcome: RunOutcome) -> FloatArray:
    return outcome.cluster.jobs_waiting.astype(np.float64)


def _queuing(runs: Sequence[Run]) -> Drawing:
    title = "Queuing time"
    note = (
        "Share of completed jobs that started within a time of their submission. Policies complete different "
        "jobs: one that declines jobs has other, and often easier, ones here."
    )
    waits = [(run, measures.queuing_seconds(run.outcome.jobs)) for run in runs]
    longest = max((float(seconds.max()) for _, seconds in waits if seconds.size), default=None)
    if longest is None:
        return Drawing("queuing", title, note, None, "No run completed a job.")
    figure, unit = base_figure(), time_unit(longest)
    for run, seconds in waits:
        if seconds.size:
            at, share = cumulative_share(seconds)
            label = plain_text(run.label)
            step_line(figure, unit.of(at), share, label, run.colour, line=line_of(run),
                      hovertemplate=f"%{{y:.1%}} within %{{x:.3g}} "
                                    f"{unit.name}<extra>{label}</extra>")  # fmt: skip
    figure.update_xaxes(title_text=f"queuing time ({unit.name})", rangemode="tozero")
    figure.update_yaxes(title_text="share of jobs", range=[0, 1.02], tickformat=".0%")
    return Drawing("queuing", title, note, figure)


def _best_effort(runs: Sequence[Run]) -> Drawing:
    title, note = "Completion of best-effort jobs", "Mean time from submission to completion; less is better."
    completed = [run for run in runs if run.summary["best_effort_mean_jct_seconds"] is not None]
    if not completed:
        return Drawing("best_effort", title, note, None, "No run completed a best-effort job.")
    seconds = [run.summary["best_effort_mean_jct_seconds"] for run in completed]
    unit = time_unit(max(seconds))
    figure = base_figure(showlegend=False, margin={"l": 8, "r": 84, "t": 12, "b": 46}, bargap=0.35)
    figure.add_trace(
        go.Bar(
            x=[each / unit.seconds for each in seconds], y=list(range(len(completed))), orientation="h",
            marker={"color": UNPROMISED}, text=[*map(duration_text, seconds)], textposition="outside",
            cliponaxis=False, hovertemplate="%{text}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_xaxes(title_text=f"mean JCT ({unit.name})", rangemode="tozero")
    label_axis(figure, [run.label for run in completed])
    figure.update_layout(height=bars_height(completed))
    return Drawing("best_effort", title, note, figure)


def _decision_times(runs: Sequence[Run]) -> Drawing:
    title, note = "Time of a decision", "Median and 99th percentile of the wall time of one decision."
    timed = [run for run in runs if run.summary["decision_ms_p50"]]
    if not timed:
        return Drawing("decisions", title, note, None, "No decision was timed.")
    figure = base_figure(margin={"l": 8, "r": 24, "t": 12, "b": 46})
    for share, name, symbol in (("p50", "Median", "circle"), ("p99", "99th percentile", "diamond-open")):
        figure.add_trace(
            go.Scatter(
                x=[run.summary[f"decision_ms_{share}"] for run in timed], y=list(range(len(timed))),
                name=name,
                mode="markers",
                marker={"color": PALETTE[0], "size": 10, "symbol": symbol, "line": {"width": 2}},
                hovertemplate="%{x:.3g} ms<extra>" + name + "</extra>",
            )
        )  # fmt: skip
    taken = np.array([run.summary[f"decision_ms_{share}"] for run in timed for share in ("p50", "p99")])
    figure.update_xaxes(title_text="milliseconds (logarithmic)", **log_ticks(taken))
    label_axis(figure, [run.label for run in timed])
    figure.update_layout(height=bars_height(timed))
    return Drawing("decisions", title, note, figure)
