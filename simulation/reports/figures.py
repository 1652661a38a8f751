"""Figures of one run over time. `drawings` returns all of a run's figures in the order of the page."""

from __future__ import annotations

import numpy as np

from scheduling.core.question.quantities import duration_text
from scheduling.core.question.snapshot import FloatArray, ServiceClass
from simulation.outcome import BoolArray, JobEnd, RunOutcome
from simulation.reports import measures
from simulation.reports.distributions import (
    decision_times,
    decisions_by_active_jobs,
    fates_by_class,
    queuing_times,
    slack,
)
from simulation.reports.gpus_by_job import gpus_by_job
from simulation.reports.lending_figures import lending_drawings
from simulation.reports.measures import Fate
from simulation.reports.steps import MOST_STEPS, Steps, highest, running_counts, steps
from simulation.reports.style import (
    BAD,
    DECLINED,
    GOOD,
    IDLE,
    NEUTRAL,
    PROMISED,
    UNPROMISED,
    WARNING,
    Drawing,
    base_figure,
    step_line,
    time_axis,
)

NO_HISTORY = "The run ended before its first planning instant."
NO_JOBS = "The trace holds no jobs."


def drawings(outcome: RunOutcome, most_steps: int = MOST_STEPS) -> list[Drawing]:
    """Return all figures of one run, with at most ``most_steps`` points a line for a run of any length."""
    return [
        gpu_allocation(outcome, most_steps),
        fates_by_class(outcome),
        jobs_over_time(outcome, most_steps),
        deadline_ratio(outcome, most_steps),
        cluster_efficiency(outcome, most_steps),
        waiting_jobs(outcome, most_steps),
        queuing_times(outcome),
        slack(outcome),
        decision_times(outcome),
        decisions_by_active_jobs(outcome),
        gpus_by_job(outcome),
        *lending_drawings(outcome, most_steps),
    ]


def thinning_note(drawn: Steps) -> str:
    """Return a sentence on how a long history was thinned; empty for an exact one."""
    if drawn.span_seconds is None:
        return ""
    return (
        f" {drawn.instants:,} planning instants are drawn as {drawn.time.size - 1:,} steps, each the mean "
        f"over {duration_text(drawn.span_seconds)}, so areas are exact and short peaks are not seen."
    )


def gpu_allocation(outcome: RunOutcome, most_steps: int = MOST_STEPS) -> Drawing:
    """Draw GPUs held by promised and by other jobs, and idle ones, as areas that add up to the cluster."""
    cluster = outcome.cluster
    note = "GPUs by what they are used for; the areas add up to the GPUs of the cluster that are up."
    if cluster.time.size == 0:
        return Drawing("gpus", "GPU allocation", note, None, NO_HISTORY, wide=True)
    idle = cluster.gpus - cluster.gpus_promised - cluster.gpus_unpromised
    drawn = steps(
        cluster.time, np.array([cluster.gpus_promised, cluster.gpus_unpromised, idle]), outcome.end_at,
        most_steps
    )  # fmt: skip
    unit = time_axis(outcome)
    figure = base_figure(hovermode="x unified")
    names = (("Promised", PROMISED), ("Not promised", UNPROMISED), ("Idle", IDLE))
    for (name, colour), row in zip(names, drawn.values, strict=True):
        step_line(
            figure, unit.of(drawn.time), row, name, colour, stackgroup="gpus", fillcolor=colour,
            line={"width": 0, "color": colour, "shape": "hv"}, hovertemplate="%{y:.1f}",
        )  # fmt: skip
    figure.update_xaxes(title_text=unit.axis_title)
    figure.update_yaxes(title_text="GPUs", rangemode="tozero")
    return Drawing("gpus", "GPU allocation", note + thinning_note(drawn), figure, wide=True)


def jobs_over_time(outcome: RunOutcome, most_steps: int = MOST_STEPS) -> Drawing:
    """Draw running counts of jobs submitted, admitted, declined, completed and completed on time."""
    jobs = outcome.jobs
    note = (
        "Jobs of all classes, counted from the start. On time: completed by the deadline, of jobs with one."
    )
    if not jobs.job_id:
        return Drawing("jobs", "Jobs submitted, admitted and completed", note, None, NO_JOBS)
    declined = measures.has_end(jobs, JobEnd.DECLINED)
    admitted = measures.is_decided(jobs) & ~declined
    decided = np.where(np.isfinite(jobs.decided_at), jobs.decided_at, jobs.started_at)
    declined_at = np.where(np.isfinite(jobs.decided_at), jobs.decided_at, jobs.submitted_at)
    events = {
        "Submitted": (NEUTRAL, jobs.submitted_at),
        "Admitted": (PROMISED, decided[admitted]),
        "Declined": (DECLINED, declined_at[declined]),
        "Completed": (UNPROMISED, jobs.completed_at[measures.has_end(jobs, JobEnd.COMPLETED)]),
        "On time": (GOOD, jobs.completed_at[measures.fates(outcome)[Fate.MET]]),
    }
    first = float(jobs.submitted_at.min())
    counted = running_counts([times for _, times in events.values()], first, outcome.end_at, most_steps)
    unit = time_axis(outcome)
    figure = base_figure(hovermode="x unified")
    for (name, (colour, _)), row in zip(events.items(), counted.counts, strict=True):
        step_line(
            figure, unit.of(counted.time), row.astype(np.float64), name, colour, hovertemplate="%{y:,.0f}"
        )
    figure.update_xaxes(title_text=unit.axis_title)
    figure.update_yaxes(title_text="jobs", rangemode="tozero")
    if not counted.exact:
        note += f" Drawn at {counted.time.size - 1:,} equal steps, where the counts are exact."
    return Drawing("jobs", "Jobs submitted, admitted and completed", note, figure)


def deadline_ratio(outcome: RunOutcome, most_steps: int = MOST_STEPS) -> Drawing:
    """Draw the share of jobs on time among those submitted so far, by class."""
    note = (
        "Of the jobs submitted up to a time, the share that met its deadline in the end; declined jobs are "
        "misses. The line of SLO jobs ends at the deadline satisfactory ratio."
    )
    jobs = outcome.jobs
    by_fate = measures.fates(outcome)
    met = by_fate[Fate.MET]
    if by_fate[Fate.OPEN].any():
        note += " Jobs that the run left unfinished before their deadline are not on time yet."
    promised = measures.is_promised(jobs)
    rows = {
        "SLO jobs": (PROMISED, measures.has_class(jobs, ServiceClass.SLO)),
        "Soft deadlines": (WARNING, measures.has_class(jobs, ServiceClass.SOFT)),
        "Promised jobs": (GOOD, promised),
    }
    unit = time_axis(outcome)
    figure = base_figure()
    for name, (colour, chosen) in rows.items():
        if not chosen.any():
            continue
        time, share = _share_by_submission(jobs.submitted_at[chosen], met[chosen], most_steps)
        step_line(
            figure, unit.of(time), share, name, colour, hovertemplate="%{y:.1%}<extra>" + name + "</extra>"
        )
    if not figure.data:
        return Drawing("ratio", "Deadline ratio over time", note, None, "No job had a deadline.")
    figure.update_xaxes(title_text=unit.axis_title)
    figure.update_yaxes(title_text="share on time", range=[0, 1.02], tickformat=".0%")
    if jobs.submitted_at.size > most_steps:
        note += f" Drawn at {most_steps:,} of the submissions, where it is exact."
    return Drawing("ratio", "Deadline ratio over time", note, figure)


def _share_by_submission(
    submitted_at: FloatArray, met: BoolArray, most: int
) -> tuple[FloatArray, FloatArray]:
    order = np.argsort(submitted_at, kind="stable")
    share = np.cumsum(met[order]) / np.arange(1, order.size + 1)
    kept = np.unique(np.linspace(0, order.size - 1, min(order.size, most)).astype(np.int64))
    return submitted_at[order][kept], share[kept]


def cluster_efficiency(outcome: RunOutcome, most_steps: int = MOST_STEPS) -> Drawing:
    """Draw cluster efficiency and the share of GPUs in use over time."""
    cluster = outcome.cluster
    note = (
        "Cluster efficiency is the sum of all jobs' speed-ups over the GPUs of the cluster: 1 means that "
        "every GPU does as much as a single one would."
    )
    if cluster.time.size == 0:
        return Drawing("efficiency", "Cluster efficiency", note, None, NO_HISTORY)
    used = np.divide(
        measures.gpus_used(cluster), cluster.gpus, out=np.full(cluster.time.size, np.nan),
        where=cluster.gpus > 0
    )  # fmt: skip
    drawn = steps(cluster.time, np.array([cluster.cluster_efficiency, used]), outcome.end_at, most_steps)
    unit = time_axis(outcome)
    figure = base_figure(hovermode="x unified")
    thin = {"width": 1, "shape": "hv"}
    step_line(figure, unit.of(drawn.time), drawn.values[1], "GPUs in use", NEUTRAL,
              line=thin | {"color": NEUTRAL}, hovertemplate="%{y:.1%}")  # fmt: skip
    step_line(figure, unit.of(drawn.time), drawn.values[0], "Cluster efficiency", PROMISED,
              line=thin | {"color": PROMISED}, hovertemplate="%{y:.3f}")  # fmt: skip
    mean = measures.time_average(cluster.cluster_efficiency, measures.span_seconds(outcome))
    if mean is not None:
        figure.add_hline(y=mean, line={"color": PROMISED, "width": 1.5, "dash": "dash"})
        note += f" Dashed: its mean over time, {mean:.3f}."
    figure.update_xaxes(title_text=unit.axis_title)
    figure.update_yaxes(title_text="efficiency, share of GPUs", rangemode="tozero")
    return Drawing("efficiency", "Cluster efficiency", note + thinning_note(drawn), figure)


def waiting_jobs(outcome: RunOutcome, most_steps: int = MOST_STEPS) -> Drawing:
    """Draw the numbers of running and waiting jobs over time."""
    cluster = outcome.cluster
    note = "Admitted jobs that hold GPUs, and those that hold none."
    if cluster.time.size == 0:
        return Drawing("waiting", "Running and waiting jobs", note, None, NO_HISTORY)
    drawn = steps(
        cluster.time, np.array([cluster.jobs_running, cluster.jobs_waiting]), outcome.end_at, most_steps
    )  # fmt: skip
    unit = time_axis(outcome)
    figure = base_figure(hovermode="x unified")
    if drawn.span_seconds is not None:
        peaks = highest(cluster.time, cluster.jobs_waiting.astype(np.float64), drawn.time)
        step_line(figure, unit.of(drawn.time[:-1]), peaks, "Most waiting in a step", BAD,
                  line={"color": BAD, "width": 1, "shape": "hv"}, opacity=0.45,
                  hovertemplate="%{y:,.0f}")  # fmt: skip
    step_line(figure, unit.of(drawn.time), drawn.values[0], "Running", UNPROMISED, hovertemplate="%{y:,.1f}")
    step_line(figure, unit.of(drawn.time), drawn.values[1], "Waiting", WARNING, hovertemplate="%{y:,.1f}")
    figure.update_xaxes(title_text=unit.axis_title)
    figure.update_yaxes(title_text="jobs", rangemode="tozero")
    return Drawing("waiting", "Running and waiting jobs", note + thinning_note(drawn), figure)
