"""Measured throughput by model, global batch, GPU type and GPU count, and readers of its tables.

Four layouts are read: a long table (``throughput.csv``), a folder with one wide table per model, Gavel's
isolated throughputs, and Pollux's measured step times (`pollux_tables`). A point that is empty, NaN or 0
could not run: it is left out and never becomes a level of zero throughput.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path

import numpy as np

from simulation.workloads.errors import TraceError, listed, quoted
from simulation.workloads.gavel_names import STEPS_PER_ITERATION, split_job_type
from simulation.workloads.trace_file import TraceFile, TraceRow, read_table, text_of
from simulation.workloads.workload import MeasuredThroughput, ModelProfile

# GPU type -> GPUs -> iterations of the global batch per second.
Points = dict[str, dict[int, float]]

LONG_TABLE = "throughput.csv"
MEMORY = "worker_memory_gb"  # of the long table: host memory of one worker on that many GPUs
BYTES_PER_GB = 1e9
GAVEL_TABLE = "throughputs_isolated.csv"
GAVEL_JSON = "simulation_throughputs.json"  # as Gavel publishes it
# Suffix of Gavel's GPU types for jobs spread over servers; plans assume consolidated placement.
SPREAD_SUFFIX = "_unconsolidated"
# GPU type of a wide table whose folder does not name one.
USUAL_GPU_TYPE = "A100"


@dataclass(frozen=True)
class ThroughputTable:
    """Profiles by (model, global batch), and their source in words.

    ``synthetic``: computed by the device model, not measured. ``memory``: bytes of one worker in place of
    throughput, if the table has them.
    """

    source: str
    points: Mapping[tuple[str, int], Points]
    synthetic: bool = False
    memory: Mapping[tuple[str, int], Points] = field(default_factory=dict)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Every measured GPU type, in alphabetical order."""
        return tuple(sorted({gpu_type for by_type in self.points.values() for gpu_type in by_type}))

    def gpu_type_named(self, name: str) -> str:
        """Return the GPU type of that name, ignoring case. Raises TraceError if there is none."""
        for gpu_type in self.gpu_types:
            if gpu_type.lower() == name.lower():
                return gpu_type
        raise TraceError(
            f"GPU type {quoted(name)} is not in {self.source}; known are {listed(list(self.gpu_types))}"
        )

    def measured_on(self, gpu_type: str) -> tuple[tuple[str, int], ...]:
        """Return the (model, global batch) pairs measured on ``gpu_type``, in alphabetical order."""
        return tuple(sorted(pair for pair, by_type in self.points.items() if by_type.get(gpu_type)))

    def profile(self, pair: tuple[str, int], gpu_types: Iterable[str]) -> ModelProfile:
        """Return the profile of ``pair`` on those of ``gpu_types`` on which it was measured."""
        measured: dict[str, MeasuredThroughput] = {}
        for gpu_type in gpu_types:
            points = self.points[pair].get(gpu_type)
            if points:
                counts = sorted(points)
                needs = self.memory.get(pair, {}).get(gpu_type, {})
                measured[gpu_type] = MeasuredThroughput(
                    gpus=np.array(counts, dtype=np.int64),
                    iterations_per_second=np.array([points[count] for count in counts], dtype=np.float64),
                    memory_bytes=None
                    if not needs
                    else np.array([needs.get(count, 0.0) for count in counts], dtype=np.float64),
                )
        return ModelProfile(model=pair[0], global_batch_size=pair[1], by_kind=measured)

    def extended(self, more: Mapping[tuple[str, int], Points], source: str) -> ThroughputTable:
        """Return this table with missing pairs and GPU types taken from ``more``."""
        merged = {pair: dict(by_type) for pair, by_type in self.points.items()}
        for pair, by_type in more.items():
            for gpu_type, points in by_type.items():
                merged.setdefault(pair, {}).setdefault(gpu_type, points)
        return ThroughputTable(f"{self.source} and {source}", merged, self.synthetic, self.memory)


def read_throughputs(path: Path) -> ThroughputTable:
    """Read the table in ``path``: a file, or a folder with the long table, Gavel's, or wide tables.

    Raises TraceError if there is none or a value is invalid.
    """
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = _table_files(path)
    else:
        raise TraceError("there is no such throughput table or folder", path=path)
    points: dict[tuple[str, int], Points] = {}
    memory: dict[tuple[str, int], Points] = {}
    for file in files:
        if file.suffix == ".json":
            read_gavel_json(file, points)
        else:
            _read_file(read_table(file), points, memory)
    if not any(by_type for by_type in points.values()):
        raise TraceError("no throughput above 0 is in this table", path=path)
    return ThroughputTable(str(path), points, memory=memory)


def _table_files(folder: Path) -> list[Path]:
    for name in (LONG_TABLE, GAVEL_TABLE, GAVEL_JSON):
        if (folder / name).is_file():
            return [folder / name]
    wide = sorted(folder.glob("throughputs_*/*.csv")) or sorted(folder.glob("*.csv"))
    if not wide:
        raise TraceError(
            f"the folder holds no throughput table: neither {LONG_TABLE} nor {GAVEL_TABLE} nor one CSV per "
            f"model",
            path=folder,
        )
    return wide


def _read_file(
    table: TraceFile, points: dict[tuple[str, int], Points], memory: dict[tuple[str, int], Points]
) -> None:
    if table.header[0] == "global_batch_size" and all(name.isdecimal() for name in table.header[1:]):
        _read_wide(table, points)
    elif {"job_type", "steps_per_s"} <= set(table.header):
        _read_gavel(table, points)
    else:
        _read_long(table, points, memory)


def _read_long(
    table: TraceFile, points: dict[tuple[str, int], Points], memory: dict[tuple[str, int], Points]
) -> None:
    needed = ("gpu_type", "model", "global_batch_size", "num_gpu", "iterations_per_second")
    missing = [name for name in needed if name not in table.header]
    if missing:
        raise TraceError(
            f"not a throughput table: column {listed(missing)} is missing; needed are {listed(list(needed))}",
            path=table.path,
            line=1,
        )
    wanted = (*needed, MEMORY) if MEMORY in table.header else needed
    for row in table.named({name: (name,) for name in wanted}):
        pair = (row.text("model"), row.whole("global_batch_size", minimum=1))
        gpus = row.whole("num_gpu", minimum=1)
        _add(points, row, pair, row.text("gpu_type"), gpus, "iterations_per_second")
        if MEMORY in wanted and row.has(MEMORY):
            needs = memory.setdefault(pair, {}).setdefault(row.text("gpu_type"), {})
            needs[gpus] = row.number(MEMORY, minimum=0) * BYTES_PER_GB


def _read_wide(table: TraceFile, points: dict[tuple[str, int], Points]) -> None:
    """Read batches by row and GPU counts by column; the file names the model, the folder the GPU type."""
    folder = table.path.resolve().parent.name
    gpu_type = folder.partition("throughputs_")[2] or USUAL_GPU_TYPE
    for row in table.named({name: (name,) for name in table.header}):
        pair = (table.path.stem, row.whole("global_batch_size", minimum=1))
        for column in table.header[1:]:
            if int(column) < 1:
                raise row.error(column, "a GPU count must be at least 1")
            _add(points, row, pair, gpu_type, int(column), column)


def _read_gavel(table: TraceFile, points: dict[tuple[str, int], Points]) -> None:
    needed = ("gpu_type", "job_type", "num_gpus", "steps_per_s")
    missing = [name for name in needed if name not in table.header]
    if missing:
        raise TraceError(f"not Gavel's table: column {listed(missing)} is missing", path=table.path, line=1)
    for row in table.named({name: (name,) for name in needed}):
        gpu_type = row.text("gpu_type")
        if gpu_type.endswith(SPREAD_SUFFIX):
            continue
        model, batch = split_job_type(row, "job_type")
        pair = (model, batch * STEPS_PER_ITERATION)
        _add(
            points,
            row,
            pair,
            gpu_type,
            row.whole("num_gpus", minimum=1),
            "steps_per_s",
            per=STEPS_PER_ITERATION,
        )


def read_gavel_json(path: Path, points: dict[tuple[str, int], Points]) -> None:
    """Add Gavel's own file: by GPU type, by ``('job type', GPUs)``, the isolated steps per second (``null``).

    Raises TraceError if it is not such a file.
    """
    columns = ("gpu_type", "job_type", "num_gpus", "steps_per_s")
    rows: list[tuple[int, tuple[str, ...]]] = []
    try:
        for gpu_type, by_job in json.loads(text_of(path)).items():
            for key, rates in by_job.items():
                job_type, gpus = literal_eval(key)
                rows.append((1, (gpu_type, job_type, str(gpus), str(rates["null"]))))
    except (ValueError, SyntaxError, AttributeError, TypeError, KeyError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(
            "this is not Gavel's file of throughputs by GPU type and job type", path=path
        ) from None
    _read_gavel(TraceFile(path, columns, tuple(rows)), points)


def _add(
    points: dict[tuple[str, int], Points],
    row: TraceRow,
    pair: tuple[str, int],
    gpu_type: str,
    gpus: int,
    column: str,
    per: int = 1,
) -> None:
    if not row.has(column):
        return
    try:
        rate = float(row.text(column))
    except ValueError:
        raise row.error(
            column, f"{quoted(row.text(column))} is not a throughput in iterations per second"
        ) from None
    if isnan(rate) or rate == 0:
        return
    if rate < 0 or rate == float("inf"):
        raise row.error(column, f"a throughput of {rate:g} iterations per second cannot be")
    measured = points.setdefault(pair, {}).setdefault(gpu_type, {})
    if gpus in measured:
        raise row.error(
            column, f"{pair[0]} with global batch {pair[1]} on {gpus} {gpu_type} GPUs is there twice"
        )
    measured[gpus] = rate / per
