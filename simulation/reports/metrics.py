"""The metrics of a summary as rows of a table: their labels, their units, and which direction is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scheduling.core.question.quantities import duration_text


class Form(StrEnum):
    """Format of a value."""

    COUNT = "count"
    SHARE = "share"
    RATIO = "ratio"
    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"
    BYTES = "bytes"


class Better(StrEnum):
    """Which direction of a metric is better."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


@dataclass(frozen=True)
class Measure:
    """One metric: its name in the summary, its label and its format."""

    name: str
    label: str
    form: Form
    better: Better = Better.NEITHER
    of_loans: bool = False


METRICS = (
    Measure("jobs", "Jobs submitted", Form.COUNT),
    Measure("slo_jobs", "SLO jobs", Form.COUNT),
    Measure("best_effort_jobs", "Best-effort jobs", Form.COUNT),
    Measure("admitted", "SLO jobs admitted", Form.COUNT),
    Measure("declined", "SLO jobs declined", Form.COUNT),
    Measure("deadlines_met", "Deadlines met", Form.COUNT, Better.HIGHER),
    Measure("deadlines_met_bound", "Deadlines met by any schedule, at most", Form.COUNT),
    Measure("deadline_satisfactory_ratio", "Deadline satisfactory ratio", Form.SHARE, Better.HIGHER),
    Measure("admitted_late", "Promised but late", Form.COUNT, Better.LOWER),
    Measure("void", "Promises void", Form.COUNT),
    # Dropping jobs changes which jobs complete, so completion times of all jobs do not rank policies.
    Measure("mean_jct_seconds", "Mean completion time (JCT)", Form.SECONDS),
    Measure("jct_seconds_p50", "JCT, median", Form.SECONDS),
    Measure("jct_seconds_p99", "JCT, 99th percentile", Form.SECONDS),
    Measure("best_effort_mean_jct_seconds", "Mean JCT of best effort", Form.SECONDS, Better.LOWER),
    Measure("mean_queuing_seconds", "Mean queuing time", Form.SECONDS),
    Measure("queuing_seconds_p99", "Queuing, 99th percentile", Form.SECONDS),
    Measure("mean_waiting_seconds", "Mean waiting, after preemptions too", Form.SECONDS),
    Measure("waiting_seconds_p99", "Waiting, 99th percentile", Form.SECONDS),
    Measure("makespan_seconds", "Makespan", Form.SECONDS),
    Measure("mean_gpu_utilisation", "GPUs in use, mean", Form.SHARE),
    Measure("mean_cluster_efficiency", "Cluster efficiency, mean", Form.RATIO),
    Measure("mean_cluster_efficiency_first_100_hours", "Cluster efficiency, first 100 h", Form.RATIO),
    Measure("rescales", "Rescales", Form.COUNT),
    Measure("migrations", "Migrations", Form.COUNT),
    Measure("preemptions", "Preemptions", Form.COUNT),
    Measure("preemption_ratio", "Preemptions per job", Form.RATIO),
    Measure("training_gpu_usage", "GPUs for training in use", Form.SHARE),
    Measure("on_loan_gpu_usage", "GPUs on loan in use", Form.SHARE, of_loans=True),
    Measure("overall_gpu_usage", "GPUs of both clusters in use", Form.SHARE, of_loans=True),
    Measure("servers_on_loan_mean", "Servers on loan, mean", Form.RATIO, of_loans=True),
    Measure("reclaim_operations", "Reclaims", Form.COUNT, of_loans=True),
    Measure("reclaim_preemptions", "Jobs preempted by reclaims", Form.COUNT, Better.LOWER, of_loans=True),
    Measure("reclaim_collateral", "Collateral damage of reclaims", Form.SHARE, Better.LOWER, of_loans=True),
    Measure("reclaim_flexible_share", "Reclaimed by shrinking alone", Form.SHARE, of_loans=True),
    Measure("reclaim_ahead_share", "Reclaims ahead of usage", Form.SHARE, of_loans=True),
    Measure("shortfall_servers_max", "Servers short, at most", Form.COUNT, Better.LOWER, of_loans=True),
    Measure("decisions", "Decisions", Form.COUNT),
    Measure("decision_ms_p50", "Decision time, median", Form.MILLISECONDS),
    Measure("decision_ms_p99", "Decision time, 99th percentile", Form.MILLISECONDS),
    Measure("simulated_seconds", "Simulated time", Form.SECONDS),
    Measure("wall_seconds", "Wall time of the event loop", Form.SECONDS),
    Measure("setup_seconds", "Setup (imports, compilation)", Form.SECONDS),
    Measure("peak_memory_bytes", "Peak memory", Form.BYTES),
)


@dataclass(frozen=True)
class Cell:
    """A value as text, and whether it is the best of its row."""

    text: str
    best: bool


@dataclass(frozen=True)
class TableRow:
    """One metric over all runs."""

    metric: Measure
    cells: tuple[Cell, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return {
            "name": self.metric.name,
            "label": self.metric.label,
            "better": self.metric.better.value,
            "cells": [{"text": cell.text, "best": cell.best} for cell in self.cells],
        }


def value_of(summary: dict[str, Any], metric: Measure) -> float | None:
    """Return a metric's value in a summary; void promises are counted over all reasons.

    Metrics of loans are None for a run without loans: no reclaims are then no merit.
    """
    if metric.of_loans and not summary["settings"].get("loaning"):
        return None
    if metric.name == "void":
        return float(sum(summary["voided"].values()))
    value = summary[metric.name]
    return None if value is None else float(value)


def table_rows(summaries: Sequence[dict[str, Any]], *, mark_best: bool) -> list[TableRow]:
    """Return all metrics of some runs. ``mark_best`` marks the best of a row, with ties, unless all are
    equal."""
    rows = []
    for metric in METRICS:
        values = [value_of(each, metric) for each in summaries]
        best = _best(values, metric.better) if mark_best else None
        cells = tuple(
            Cell(shown(value, metric.form), value is not None and value == best) for value in values
        )
        rows.append(TableRow(metric, cells))
    return rows


def _best(values: Sequence[float | None], better: Better) -> float | None:
    known = [value for value in values if value is not None]
    if better == Better.NEITHER or len(set(known)) < 2:
        return None
    return max(known) if better == Better.HIGHER else min(known)


def shown(value: float | None, form: Form) -> str:
    """Return a value with its unit; a dash if it does not apply."""
    if value is None:
        return "–"
    if form == Form.COUNT:
        return f"{value:,.0f}"
    if form == Form.SHARE:
        return f"{value:.1%}"
    if form == Form.RATIO:
        return f"{value:.3f}"
    if form == Form.SECONDS:
        return duration_text(value)
    if form == Form.MILLISECONDS:
        return f"{value:.3g} ms" if value < 1000 else duration_text(value / 1000)
    return f"{value / 1024**2:,.0f} MiB" if value < 1024**3 else f"{value / 1024**3:.2f} GiB"
