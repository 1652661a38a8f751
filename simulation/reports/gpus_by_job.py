"""GPUs of every job over time, one line per job, for runs small enough to be read job by job."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from scheduling.core.question.snapshot import FloatArray, IntArray
from simulation.outcome import JobEnd, RunOutcome
from simulation.reports import measures
from simulation.reports.style import (
    BAD,
    DECLINED,
    NEUTRAL,
    Drawing,
    TimeUnit,
    base_figure,
    label_axis,
    time_axis,
)

MOST_JOBS = 60
MOST_PIECES = 6_000
TITLE = "GPUs by job"
#: From few GPUs to many: each doubling is one step darker.
_SCALE = (
    "#c9dcf7", "#a4c3f0", "#7fa9e8", "#5b8fdf", "#3b74d1", "#2c5db3", "#214893", "#183673",
    "#102654", "#0a1937",
)  # fmt: skip


def pieces(outcome: RunOutcome) -> tuple[IntArray, FloatArray, FloatArray, IntArray]:
    """Return the number of GPUs of each job over time: (job, begin, end, gpus), by job and time, without
    empty pieces."""
    history = outcome.allocations
    order = np.lexsort((np.arange(history.time.size), history.time, history.job))
    job, begin, gpus = history.job[order], history.time[order], history.gpus[order]
    end = np.full(begin.size, outcome.end_at)
    same_job = job[1:] == job[:-1]
    end[:-1][same_job] = begin[1:][same_job]
    kept = (gpus > 0) & (end > begin)
    return job[kept], begin[kept], end[kept], gpus[kept]


def gpus_by_job(outcome: RunOutcome) -> Drawing:
    """Draw one line per job, darker with more GPUs, with its submission and its deadline."""
    note = "One line a job, darker with more GPUs. Triangle: submitted, cross: declined, red mark: deadline."
    count = len(outcome.jobs.job_id)
    if count > MOST_JOBS or not count:
        reason = f"Drawn for runs of 1 to {MOST_JOBS} jobs; this one has {count:,}."
        return Drawing("jobs_gpus", TITLE, note, None, reason, wide=True)
    job, begin, end, gpus = pieces(outcome)
    if job.size > MOST_PIECES:
        reason = f"GPUs changed {job.size:,} times, too often to be drawn job by job."
        return Drawing("jobs_gpus", TITLE, note, None, reason, wide=True)
    unit = time_axis(outcome)
    figure = base_figure(barmode="overlay", bargap=0.2, height=130 + 18 * count)
    for held in np.unique(gpus).tolist():
        chosen = gpus == held
        _add_bars(figure, unit, int(held), job[chosen], begin[chosen], end[chosen])
    _add_marks(figure, unit, outcome)
    figure.update_xaxes(title_text=unit.axis_title)
    label_axis(figure, outcome.jobs.job_id)
    return Drawing("jobs_gpus", TITLE, note, figure, wide=True)


def _add_bars(
    figure: go.Figure, unit: TimeUnit, held: int, job: IntArray, begin: FloatArray, end: FloatArray
) -> None:
    name = f"{held} GPU" if held == 1 else f"{held} GPUs"
    figure.add_trace(
        go.Bar(
            x=unit.lengths(end - begin), base=unit.of(begin), y=job, orientation="h", width=0.8, name=name,
            marker={"color": _SCALE[min(held.bit_length() - 1, len(_SCALE) - 1)], "line": {"width": 0}},
            customdata=unit.of(end),
            hovertemplate="%{base:.4g} to %{customdata:.4g} " + unit.name + f"<extra>{name}</extra>",
        )
    )  # fmt: skip


def _add_marks(figure: go.Figure, unit: TimeUnit, outcome: RunOutcome) -> None:
    jobs = outcome.jobs
    declined = measures.has_end(jobs, JobEnd.DECLINED)
    # A deadline far beyond the end would compress everything else.
    shown = np.isfinite(jobs.deadline_at) & (
        jobs.deadline_at <= outcome.end_at + 0.05 * measures.simulated_seconds(outcome)
    )
    marks = (
        ("Submitted", ~declined, jobs.submitted_at, "triangle-right", NEUTRAL, 7),
        ("Declined", declined, jobs.submitted_at, "x", DECLINED, 7),
        ("Deadline", shown, jobs.deadline_at, "line-ns-open", BAD, 11),
    )
    for name, chosen, at, symbol, colour, size in marks:
        if chosen.any():
            figure.add_trace(
                go.Scatter(
                    x=unit.of(at[chosen]), y=np.flatnonzero(chosen), mode="markers", name=name,
                    marker={"symbol": symbol, "color": colour, "size": size,
                    "line": {"width": 2, "color": colour}},
                    hovertemplate="%{x:.4g} " + unit.name + f"<extra>{name}</extra>",
                )
            )  # fmt: skip
