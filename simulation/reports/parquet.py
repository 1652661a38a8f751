"""A run as Parquet: a folder of three files, five if servers were lent, and its reader.

`jobs.parquet` has one row per job, `cluster.parquet` one per planning instant, `allocations.parquet` one per
change of a job's GPUs (`job` is the row in `jobs.parquet`, from 0), `loans.parquet` one per orchestrator
period and `reclaims.parquet` one per reclaim. Columns are named as in `simulation/outcome.py` and
`simulation/loans.py`; times are seconds from the start of the trace, null if the event did not happen,
infinite for the deadline of best effort. Every file has, as JSON in its key-value metadata,
`punctual.summary` (the summary) and `punctual.run` (settings, counts and whatever else describes the run).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scheduling.core.question.snapshot import FloatArray, IntArray, ServiceClass
from simulation.loans import LoanHistory, ReclaimRecord
from simulation.outcome import AllocationHistory, ClusterHistory, JobEnd, JobOutcomes, RunOutcome
from simulation.reports.summary import summary

FORMAT = "1"
JOBS, CLUSTER, ALLOCATIONS = "jobs.parquet", "cluster.parquet", "allocations.parquet"
LOANS, RECLAIMS = "loans.parquet", "reclaims.parquet"
_OF_LENDING = ("servers", "headroom", "gpus_per_server", "owned_gpus")
History = TypeVar("History", ClusterHistory, AllocationHistory)
Word = TypeVar("Word", bound=StrEnum)


class ResultFileError(ValueError):
    """A folder does not hold a run: a file is missing, unreadable, of another format, or of another run."""


def write_parquet(outcome: RunOutcome, folder: str | Path) -> list[Path]:
    """Write a run to a folder, created if needed, and return the files. Each file is written atomically.

    Files of another run are replaced. Raises OSError if a file cannot be written.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    metadata = {
        "punctual.format": FORMAT,
        "punctual.summary": json.dumps(summary(outcome), allow_nan=False),
        "punctual.run": json.dumps(_description(outcome)),
    }
    tables = {
        JOBS: _arrow(outcome.jobs), CLUSTER: _arrow(outcome.cluster),
        ALLOCATIONS: _arrow(outcome.allocations),
        **({} if outcome.loans is None else _lending_tables(outcome.loans)),
    }  # fmt: skip
    for name in {LOANS, RECLAIMS} - set(tables):
        (place / name).unlink(missing_ok=True)
    written = []
    for name, table in tables.items():
        path, unfinished = place / name, place / f".{name}.{os.getpid()}"
        try:
            pq.write_table(
                table.replace_schema_metadata(metadata), unfinished, compression="zstd"
            )  # fmt: skip
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        written.append(path)
    return written


def read_parquet(folder: str | Path) -> RunOutcome:
    """Read the run that `write_parquet` wrote to a folder. Raises ResultFileError if there is none."""
    place = Path(folder)
    lending = (LOANS, RECLAIMS) if (place / LOANS).is_file() else ()
    tables = {name: _read_table(place / name) for name in (JOBS, CLUSTER, ALLOCATIONS, *lending)}
    described = {name: _metadata(table, place / name) for name, table in tables.items()}
    if len(set(described.values())) > 1:
        raise ResultFileError(f"the files in {place} are not of one run: write them again")
    jobs, cluster = (
        _jobs(tables[JOBS], place / JOBS),
        _numbers(ClusterHistory, tables[CLUSTER], place / CLUSTER),
    )
    allocations = _numbers(AllocationHistory, tables[ALLOCATIONS], place / ALLOCATIONS)
    try:
        run = json.loads(described[JOBS])
        run["notes"] = tuple(run["notes"])
        lent = run.pop("lending", None)
        loans = _loans(tables, place, lent) if lending and lent else None
        return RunOutcome(jobs=jobs, cluster=cluster, allocations=allocations, loans=loans, **run)
    except (ValueError, KeyError, TypeError) as error:
        raise ResultFileError(f"{place / JOBS}: what describes the run is not whole ({error})") from error


def _description(outcome: RunOutcome) -> dict[str, Any]:
    apart = {"jobs", "cluster", "allocations", "loans"}
    described = {each.name: getattr(outcome, each.name) for each in fields(outcome) if each.name not in apart}
    if outcome.loans is not None:
        described["lending"] = {name: getattr(outcome.loans, name) for name in _OF_LENDING}
        described["lending"]["borrowers"] = outcome.loans.borrowers.tolist()
    return described


def _arrow(table: JobOutcomes | ClusterHistory | AllocationHistory) -> pa.Table:
    """Make columns of the types with which the fields are declared."""
    columns = {}
    for each in fields(table):
        values = getattr(table, each.name)
        if each.type == "FloatArray":
            # NaN means that the event did not happen: null in the file.
            columns[each.name] = pa.array(values, type=pa.float64(), from_pandas=True)
        elif each.type == "IntArray":
            columns[each.name] = pa.array(values, type=pa.int64())
        elif each.type == "tuple[bool, ...]":
            columns[each.name] = pa.array(values, type=pa.bool_())
        else:
            words = pa.array([str(value) for value in values], type=pa.string())
            columns[each.name] = words if each.name == "job_id" else words.dictionary_encode()
    return pa.table(columns)


def _lending_tables(loans: LoanHistory) -> dict[str, pa.Table]:
    columns = {
        each.name: getattr(loans, each.name)
        for each in fields(loans)
        if each.type in ("FloatArray", "IntArray")
    }
    del columns["borrowers"]
    return {
        LOANS: pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()}),
        RECLAIMS: pa.table(
            {each.name: [getattr(one, each.name) for one in loans.reclaims] for each in fields(ReclaimRecord)}
        ),
    }


def _loans(tables: dict[str, pa.Table], place: Path, lending: dict[str, Any]) -> LoanHistory:
    known: dict[str, Any] = {
        each.name: (_integers if each.type == "IntArray" else _floats)(
            tables[LOANS], each.name, place / LOANS
        )
        for each in fields(LoanHistory)
        if each.type in ("FloatArray", "IntArray") and each.name != "borrowers"
    }
    borrowers = np.array(lending.pop("borrowers"), dtype=np.int64)
    reclaims = tuple(ReclaimRecord(**row) for row in tables[RECLAIMS].to_pylist())
    return LoanHistory(**lending, **known, reclaims=reclaims, borrowers=borrowers)


def _read_table(path: Path) -> pa.Table:
    if not path.is_file():
        raise ResultFileError(f"there is no simulated run: {path} is missing")
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ResultFileError(f"{path} is not a readable Parquet file: {error}") from error


def _metadata(table: pa.Table, path: Path) -> str:
    metadata = table.schema.metadata or {}
    if b"punctual.run" not in metadata:
        raise ResultFileError(f"{path} holds no simulated run")
    if metadata.get(b"punctual.format") != FORMAT.encode():
        found = metadata.get(b"punctual.format", b"none").decode(errors="replace")
        raise ResultFileError(f"{path} is of format {found}, this version reads format {FORMAT}")
    described: bytes = metadata[b"punctual.run"]
    return described.decode()


def _column(table: pa.Table, name: str, path: Path) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise ResultFileError(f"{path} has no column {name!r}")
    return table.column(name)


def _floats(table: pa.Table, name: str, path: Path) -> FloatArray:
    # Not fill_null, which would have to distinguish null from NaN; to_numpy already turns null into NaN.
    column: FloatArray = _column(table, name, path).to_numpy().astype(np.float64)
    return column


def _integers(table: pa.Table, name: str, path: Path) -> IntArray:
    column: IntArray = _column(table, name, path).to_numpy().astype(np.int64)
    return column


def _words(table: pa.Table, name: str, path: Path) -> list[str]:
    found: list[str] = _column(table, name, path).to_pylist()
    return found


def _members(kind: type[Word], words: Iterable[str], path: Path) -> tuple[Word, ...]:
    try:
        return tuple(kind(word) for word in words)
    except ValueError as error:
        raise ResultFileError(f"{path}: {error}") from error


def _numbers(kind: type[History], table: pa.Table, path: Path) -> History:
    columns: dict[str, Any] = {
        each.name: (_integers if each.type == "IntArray" else _floats)(table, each.name, path)
        for each in fields(kind)
    }
    return kind(**columns)


def _jobs(table: pa.Table, path: Path) -> JobOutcomes:
    columns: dict[str, Any] = {}
    for each in fields(JobOutcomes):
        if each.type == "IntArray":
            columns[each.name] = _integers(table, each.name, path)
        elif each.type == "FloatArray":
            columns[each.name] = _floats(table, each.name, path)
        else:
            columns[each.name] = tuple(_words(table, each.name, path))
    columns["service_class"] = _members(ServiceClass, columns["service_class"], path)
    columns["end"] = _members(JobEnd, columns["end"], path)
    return JobOutcomes(**columns)
