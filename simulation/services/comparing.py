"""The comparison of a study's finished runs, made once by a worker and then read by pages."""

from __future__ import annotations

import gzip
import json
import secrets
import tempfile
from pathlib import Path

import structlog
from django.db import transaction
from plotly.utils import PlotlyJSONEncoder

from cluster.choices import WorkState
from simulation import store
from simulation.models import SimulationRun, SimulationStudy
from simulation.outcome import RunOutcome
from simulation.reports.comparison import comparison
from simulation.reports.html import report_page
from simulation.reports.parquet import ResultFileError, read_parquet
from simulation.selectors.studies import result_files
from simulation.services.runs import tell_pages
from simulation.store import COMPARISON_FILE, REPORT_FILE

log = structlog.get_logger(__name__)

#: Limit on how often a comparison starts again because another run ended meanwhile.
MOST_ROUNDS = 5


def refresh_comparison(study_id: int) -> bool:
    """Compare the study's finished runs unless that is done. Return whether a comparison was stored.

    Raises OSError if the store fails.
    """
    for _ in range(MOST_ROUNDS):
        study = SimulationStudy.objects.filter(pk=study_id).first()
        if study is None:
            return False
        runs = _done(study_id)
        if not runs or study.compared_runs == [run.pk for run in runs]:
            return False
        key = _compare(study, runs)
        if _point_to(study_id, key, [run.pk for run in runs]):
            return True
        store.remove(key)
    return False


def _done(study_id: int) -> list[SimulationRun]:
    return list(SimulationRun.objects.filter(study_id=study_id, state=WorkState.DONE).order_by("id"))


def _compare(study: SimulationStudy, runs: list[SimulationRun]) -> str:
    outcomes, missing = _outcomes(runs)
    compared = comparison(outcomes) if outcomes else {"runs": [], "figures": {}, "table": [], "warnings": []}
    compared["warnings"] += [f"The results of {run} are gone from the store." for run in missing]
    key = f"{store.study_folder(study.pk)}/comparison-{secrets.token_hex(6)}"
    with tempfile.TemporaryDirectory(prefix="comparison-") as folder:
        files = [
            _packed(
                Path(folder) / COMPARISON_FILE, json.dumps(compared, cls=PlotlyJSONEncoder, allow_nan=False)
            )
        ]
        if outcomes:
            files.append(_packed(Path(folder) / REPORT_FILE, report_page(outcomes, title=study.name)))
        store.put(files, key)
    return key


def _packed(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode(), compresslevel=6))
    return path


def _outcomes(runs: list[SimulationRun]) -> tuple[list[RunOutcome], list[SimulationRun]]:
    found: list[RunOutcome] = []
    missing: list[SimulationRun] = []
    for run in runs:
        with tempfile.TemporaryDirectory(prefix="results-") as folder:
            try:
                store.fetch(run.results_key, list(result_files(run)), Path(folder))
                found.append(read_parquet(folder))
            except (FileNotFoundError, ResultFileError) as error:
                log.error("simulation results missing", run=run.pk, error=str(error))
                missing.append(run)
    return found, missing


@transaction.atomic
def _point_to(study_id: int, key: str, compared: list[int]) -> bool:
    """Make it the study's comparison, unless another run ended or another worker stored the same one."""
    study = SimulationStudy.objects.select_for_update(no_key=True).filter(pk=study_id).first()
    if study is None or study.compared_runs == compared or [run.pk for run in _done(study_id)] != compared:
        return False
    before = study.comparison_key
    study.comparison_key, study.compared_runs = key, compared
    study.save(update_fields=["comparison_key", "compared_runs"])
    if before:
        transaction.on_commit(lambda: store.remove(before))
    tell_pages("compared")
    return True
