"""Results of runs: what figures need of a finished run, kept as one JSON file each so that interrupted work
goes on."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scheduling.core.question.snapshot import FloatArray
from simulation.outcome import JobEnd, Outcome
from simulation.reports import measures
from simulation.reports.steps import steps
from simulation.reports.summary import summary

MOST_STEPS = 600
"""Histories are kept as so many means over equal spans: areas stay exact."""

MOST_BROKEN = 20


@dataclass(frozen=True)
class RunResult:
    """What came of one run.

    ``summary``: the JSON summary of `simulation.reports.summary`. ``facts``: more figures
    (`peak_cluster_efficiency`, `slo_jobs_possible_alone`, `slo_jobs_possible_as_requested`). ``series``:
    ``hours`` since the run began, and at these ``gpus_used``, ``cluster_efficiency``, ``jobs_running``,
    ``submitted``, ``admitted`` and ``declined`` (the last three counted from the start).
    """

    summary: dict[str, Any]
    facts: dict[str, float | int]
    series: dict[str, list[float]]

    @property
    def met(self) -> int:
        """SLO jobs on time."""
        return int(self.summary["deadlines_met"])

    @property
    def declined(self) -> int:
        """SLO jobs that were dropped."""
        return int(self.summary["declined"])

    @property
    def late(self) -> int:
        """SLO jobs that were not dropped and missed their deadline."""
        return int(self.summary["fates"]["slo"]["missed"])

    @property
    def slo_jobs(self) -> int:
        """SLO jobs submitted."""
        return int(self.summary["slo_jobs"])

    @property
    def ratio(self) -> float | None:
        """SLO jobs on time over SLO jobs submitted; None without any."""
        ratio: float | None = self.summary["deadline_satisfactory_ratio"]
        return ratio


def result_of(outcome: Outcome, bounds: dict[str, int]) -> RunResult:
    """What is kept of an outcome. ``bounds``: counts of jobs that any policy could have met at most, by
    name."""
    facts = summary(outcome)
    facts["broken"] = dict(list(facts["broken"].items())[:MOST_BROKEN])
    efficiency = outcome.cluster.cluster_efficiency
    return RunResult(
        summary=facts,
        facts={
            "peak_cluster_efficiency": float(efficiency.max()) if efficiency.size else 0.0,
            **bounds,
        },
        series=_series(outcome),
    )


def _series(outcome: Outcome) -> dict[str, list[float]]:
    cluster, jobs = outcome.cluster, outcome.jobs
    if not cluster.time.size:
        return {}
    begin = measures.begin_at(outcome)
    kept = steps(
        cluster.time,
        np.array([measures.gpus_used(cluster), cluster.cluster_efficiency, cluster.jobs_running]),
        outcome.end_at,
        MOST_STEPS,
    )
    declined = measures.has_end(jobs, JobEnd.DECLINED)
    admitted = measures.is_decided(jobs) & ~declined
    counted = {
        "submitted": jobs.submitted_at,
        "admitted": jobs.submitted_at[admitted],
        "declined": jobs.submitted_at[declined],
    }
    return {
        "hours": _rounded((kept.time - begin) / 3600.0),
        "gpus_used": _rounded(kept.values[0]),
        "cluster_efficiency": _rounded(kept.values[1]),
        "jobs_running": _rounded(kept.values[2]),
        **{
            name: _rounded(np.searchsorted(np.sort(times), kept.time, side="right").astype(np.float64))
            for name, times in counted.items()
        },
    }


def _rounded(values: FloatArray) -> list[float]:
    rounded: list[float] = np.round(np.nan_to_num(values), 5).tolist()
    return rounded


class ResultStore:
    """Results in a folder, one file a run, named by its key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "runs"

    def get(self, key: str) -> RunResult | None:
        """The stored result, or None where there is none or it cannot be read: it is made again then."""
        try:
            stored = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
            return RunResult(stored["summary"], stored["facts"], stored["series"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, spec: dict[str, Any], result: RunResult) -> None:
        """Store a result. The file appears whole or not at all. Raises OSError where nothing can be
        written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{key}.json"
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        stored = {"run": spec, "summary": result.summary, "facts": result.facts, "series": result.series}
        try:
            unfinished.write_text(json.dumps(stored, allow_nan=False), encoding="utf-8")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
