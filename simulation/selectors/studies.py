"""Queries for studies, their runs, comparisons and files."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from typing import IO, Any

import structlog
from django.db.models import QuerySet

from cluster.choices import WorkState
from projects.errors import NotFound, Unavailable
from simulation.models import SimulationRun, SimulationStudy
from simulation.store import COMPARISON_FILE, LOAN_FILES, REPORT_FILE, RESULT_FILES, open_file

log = structlog.get_logger(__name__)

#: Figures of a comparison in the order of the page: names in `simulation/reports/comparison.py`, and their
#: titles.
COMPARISON_FIGURES = {
    "fates": "Deadlines",
    "ratios": "Deadline satisfactory ratio",
    "on_time": "Jobs on time",
    "utilisation": "GPUs in use",
    "efficiency": "Cluster efficiency",
    "waiting": "Waiting jobs",
    "queuing": "Queuing time",
    "best_effort": "Completion of best-effort jobs",
    "on_loan": "Servers on loan",
    "reclaims": "Reclaims and their cost",
    "decisions": "Time of a decision",
}
#: Figures that need servers on loan.
_FIGURES_OF_LOANS = ("on_loan", "reclaims")


def studies(source: str | None = None) -> QuerySet[SimulationStudy]:
    """Return all studies, or those of one source, newest first, with their runs; without the live states,
    which are large."""
    rows = SimulationStudy.objects.defer("live_state").select_related("created_by").prefetch_related("runs")
    return rows if source is None else rows.filter(source=source)


def study_get(study_id: int) -> SimulationStudy:
    """Return one study.

    Raises:
        NotFound: it does not exist.
    """
    study = studies().filter(pk=study_id).first()
    if study is None:
        raise NotFound(f"There is no study {study_id}.")
    return study


def run_get(study_id: int, run_id: int) -> SimulationRun:
    """Return one run of a study.

    Raises:
        NotFound: the study has no such run.
    """
    run = SimulationRun.objects.filter(pk=run_id, study_id=study_id).first()
    if run is None:
        raise NotFound(f"Study {study_id} has no run {run_id}.")
    return run


def comparison_of(study: SimulationStudy) -> dict[str, Any] | None:
    """Return the comparison of the study's finished runs (`simulation.reports.comparison.comparison`); None
    before the first.

    Raises:
        Unavailable: the store does not answer.
    """
    if not study.comparison_key:
        return None
    try:
        return _comparison(study.comparison_key)
    except NotFound:
        log.error("comparison_gone", study=study.pk, key=study.comparison_key)
        warning = "The results of this study are gone from the store; make it again."
        return {"runs": [], "figures": {}, "table": [], "warnings": [warning]}


@lru_cache(maxsize=16)
def _comparison(key: str) -> dict[str, Any]:
    with _open(key, COMPARISON_FILE) as packed:
        read: dict[str, Any] = json.loads(gzip.decompress(packed.read()))
    return read


def report_open(study: SimulationStudy) -> bytes:
    """Return the HTML report of the finished runs.

    Raises:
        NotFound: no run is finished yet, or its file is gone.
        Unavailable: the store does not answer.
    """
    if not study.comparison_key:
        raise NotFound("No run of this study is finished and compared yet.")
    with _open(study.comparison_key, REPORT_FILE) as packed:
        return gzip.decompress(packed.read())


def figures_of(study: SimulationStudy) -> dict[str, str]:
    """Return the figures of the study's page with their titles."""
    return {
        name: title
        for name, title in COMPARISON_FIGURES.items()
        if study.lends or name not in _FIGURES_OF_LOANS
    }


def result_files(run: SimulationRun) -> tuple[str, ...]:
    """Return the names of the run's Parquet files: two more if servers were lent."""
    return RESULT_FILES + (LOAN_FILES if run.inference_servers else ())


def result_open(run: SimulationRun, name: str) -> IO[bytes]:
    """Open one of a finished run's Parquet files.

    Raises:
        NotFound: the run is not finished, or there is no such file.
        Unavailable: the store does not answer.
    """
    if run.state != WorkState.DONE:
        raise NotFound(f"Run {run.pk} has no results: it is {run.state}.")
    names = result_files(run)
    if name not in names:
        raise NotFound(f"There is no file {name}; there are {', '.join(names)}.")
    return _open(run.results_key, name)


def _open(key: str, name: str) -> IO[bytes]:
    try:
        return open_file(key, name)
    except FileNotFoundError as error:
        raise NotFound(f"The file {name} is gone from the store.") from error
    except OSError as error:
        log.error("store_unavailable", key=key, error=str(error))
        raise Unavailable("The store of results does not answer; try again soon.") from error
