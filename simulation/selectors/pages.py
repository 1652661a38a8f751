"""Content of the pages on simulations: lists, progress of runs, and the comparison as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.paginator import Page, Paginator

from cluster.choices import WorkState
from projects.errors import Unavailable
from simulation.models import SimulationRun, SimulationStudy
from simulation.selectors.studies import comparison_of, result_files, studies

ROWS_PER_PAGE = 20
#: Metrics that are shown at once; the others are collapsed.
HEADLINES = (
    "slo_jobs", "admitted", "declined", "deadlines_met", "deadlines_met_bound", "deadline_satisfactory_ratio",
    "admitted_late",
    "best_effort_mean_jct_seconds", "mean_gpu_utilisation", "mean_cluster_efficiency", "rescales",
    "migrations",
    "preemptions", "decision_ms_p99", "wall_seconds",
)  # fmt: skip
#: Shown at once too if servers are lent.
HEADLINES_OF_LOANS = (
    "servers_on_loan_mean", "on_loan_gpu_usage", "overall_gpu_usage", "reclaim_operations",
    "reclaim_preemptions",
    "shortfall_servers_max",
)  # fmt: skip


@dataclass(frozen=True)
class StudyRow:
    """One line of the list."""

    study: SimulationStudy
    policies: list[str]
    servers: list[int]
    inference_servers: list[int]
    total: int
    done: int
    failed: int
    unfinished: int
    progress: float


@dataclass(frozen=True)
class ResultFile:
    """A file of a finished run: its name, and its short label."""

    name: str
    label: str


@dataclass(frozen=True)
class RunRow:
    """One run with its main result."""

    run: SimulationRun
    files: list[ResultFile]
    seconds: float | None
    met: int | None
    of: int | None
    bound: int | None


@dataclass(frozen=True)
class ComparisonTable:
    """The comparison without its figures. ``rows`` are those of
    `simulation.reports.comparison.comparison`."""

    labels: list[str]
    headlines: list[dict[str, Any]]
    others: list[dict[str, Any]]
    warnings: list[str]
    notes: list[str]
    made: str


def studies_page(number: int) -> tuple[list[StudyRow], Page]:
    """Return one page of the list, newest first."""
    found = Paginator(studies(), ROWS_PER_PAGE).get_page(number)
    return [_row(study) for study in found.object_list], found


def _row(study: SimulationStudy) -> StudyRow:
    runs = list(study.runs.all())
    return StudyRow(
        study=study,
        policies=list(dict.fromkeys(run.rule() for run in runs)),
        servers=list(dict.fromkeys(run.servers for run in runs)),
        inference_servers=sorted({run.inference_servers for run in runs}),
        total=len(runs),
        done=sum(run.state == WorkState.DONE for run in runs),
        failed=sum(run.state == WorkState.FAILED for run in runs),
        unfinished=sum(not run.finished() for run in runs),
        progress=sum(1.0 if run.finished() else run.progress() for run in runs) / max(1, len(runs)),
    )


def run_rows(study: SimulationStudy, now: datetime) -> list[RunRow]:
    """Return the study's runs in the order of the request."""
    rows = []
    for run in study.runs.all():
        facts = run.summary or {}
        seconds = None if run.state == WorkState.QUEUED else run.seconds_running(now)
        files = [ResultFile(name, name.removesuffix(".parquet")) for name in result_files(run)]
        rows.append(RunRow(run, files, seconds, facts.get("deadlines_met"), facts.get("slo_jobs"),
                           facts.get("deadlines_met_bound")))  # fmt: skip
    return rows


def comparison_table(study: SimulationStudy) -> ComparisonTable | None:
    """Return the finished runs side by side; None before the first is done and compared."""
    compared = _comparison_or_why_not(study)
    if compared is None:
        return None
    by_name = {row["name"]: row for row in compared["table"]}
    # The page shows the study's own notes already.
    notes = dict.fromkeys(
        note for run in compared["runs"] for note in run["notes"] if note not in study.notes
    )
    headlines = (*HEADLINES, *(HEADLINES_OF_LOANS if study.lends else ()))
    made = next((figure["layout"]["meta"]["made"] for figure in compared["figures"].values()), "")
    return ComparisonTable(
        labels=[run["label"] for run in compared["runs"]],
        headlines=[by_name[name] for name in headlines if name in by_name],
        others=_without(compared["table"], headlines),
        warnings=compared["warnings"],
        notes=list(notes),
        made=made,
    )


def _comparison_or_why_not(study: SimulationStudy) -> dict[str, Any] | None:
    try:
        return comparison_of(study)
    except Unavailable as error:
        return {"runs": [], "figures": {}, "table": [], "warnings": [error.detail]}


def _without(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    return [row for row in rows if row["name"] not in names]


def comparison_figure(study: SimulationStudy, name: str) -> dict[str, Any]:
    """Return one figure for the page's script: Plotly's JSON with its note, or why it is empty."""
    compared = _comparison_or_why_not(study)
    figure = (compared or {"figures": {}})["figures"].get(name)
    if figure is None:
        warnings = compared["warnings"] if compared else []
        return {"empty": " ".join(warnings) or "Drawn as soon as a run is done."}
    meta = figure["layout"]["meta"]
    if "empty" in meta:
        return {"empty": meta["empty"], "note": meta["note"]}
    return {"figure": figure, "note": meta["note"]}
