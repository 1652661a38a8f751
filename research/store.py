"""Results of runs: what figures need of a finished run, stored as one JSON file each, so that interrupted
work can be resumed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulation.outcome import RunOutcome
from simulation.reports.summary import summary

MOST_BROKEN = 20


@dataclass(frozen=True)
class RunResult:
    """Result of one run.

    ``summary``: the JSON summary of `simulation.reports.summary`. ``facts``: further figures by name.
    ``series``: ordered numbers by name. The paper's own ``results`` defines facts and series.
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
        """SLO jobs declined."""
        return int(self.summary["declined"])

    @property
    def late(self) -> int:
        """SLO jobs that were admitted and missed their deadline."""
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


def short_summary(outcome: RunOutcome) -> dict[str, Any]:
    """Return the JSON summary of an outcome, with only the first broken promises."""
    facts = summary(outcome)
    facts["broken"] = dict(list(facts["broken"].items())[:MOST_BROKEN])
    return facts


class ResultStore:
    """Results in a folder, one file per run, named by its key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "runs"

    def get(self, key: str) -> RunResult | None:
        """Return the stored result, or None if it is missing or unreadable and must be made again."""
        try:
            stored = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
            return RunResult(stored["summary"], stored["facts"], stored["series"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, spec: dict[str, Any], result: RunResult) -> None:
        """Store a result atomically. Raises OSError if the file cannot be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{key}.json"
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        stored = {"run": spec, "summary": result.summary, "facts": result.facts, "series": result.series}
        try:
            unfinished.write_text(json.dumps(stored, allow_nan=False), encoding="utf-8")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
