"""Workloads by name or path: the entry point of this package for simulator, pages and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import simulation.workloads.synthetic_lyra  # noqa: F401 - registers its profile
from simulation.workloads.assembly import assemble, unknown_model
from simulation.workloads.device_model import NETWORKS, synthetic_throughputs
from simulation.workloads.errors import TraceError, listed, quoted
from simulation.workloads.goodput import with_goodput
from simulation.workloads.importers import detect_format, pollux, read_trace
from simulation.workloads.options import WorkloadOptions, split_options
from simulation.workloads.pollux_tables import GPU_TYPE as POLLUX_GPU_TYPE
from simulation.workloads.pollux_tables import pollux_points
from simulation.workloads.public_traces import (
    PUBLIC_TRACES,
    THROUGHPUTS,
    VARIABLE,
    find_trace,
    traces_folder,
)
from simulation.workloads.records import ParsedTrace, TraceFormat
from simulation.workloads.synthetic import PROFILES, generate
from simulation.workloads.throughputs import (
    GAVEL_JSON,
    GAVEL_TABLE,
    LONG_TABLE,
    USUAL_GPU_TYPE,
    Points,
    ThroughputTable,
    read_throughputs,
)
from simulation.workloads.trace_file import TraceFile
from simulation.workloads.workload import Workload

# Places of the tables, relative to the trace's folder, the folders above it and the traces folder.
TABLE_PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    LONG_TABLE: {LONG_TABLE: ("", "elasticflow")},
    GAVEL_TABLE: {GAVEL_TABLE: ("", "gavel", "traces/gavel"), GAVEL_JSON: ("", "scheduler")},
}
FOLDERS_ABOVE = 3


def load_workload(
    trace: str,
    *,
    throughputs: Path | None = None,
    gpu_type: str | None = None,
    seed: int = 0,
    limit_jobs: int | None = None,
    options: WorkloadOptions | None = None,
    allow_paths: bool = True,
) -> Workload:
    """Return the workload ``trace``: a file's path, a synthetic profile, or a trace in the traces folder.

    Options may follow the name: ``elasticflow:jobs=200,best_effort_share=0.3``.

    ``throughputs``: a table or its folder; None uses the one beside the trace's data, or the built-in
    synthetic one if models are drawn. ``gpu_type``: the reference for durations and requests; None is the
    format's usual one, or the only type on which all of the trace's models were measured
    (`reference_gpu_type` returns it). Profiles include all other types of the table. ``seed`` draws what the
    trace leaves open. ``limit_jobs`` keeps the first jobs by submission. ``allow_paths``: whether ``trace``
    may be any file of this machine; False, for requests from a network, allows names only.

    Raises TraceError with one line for users.
    """
    name, chosen = split_options(trace, options or WorkloadOptions())
    if limit_jobs is not None and limit_jobs < 1:
        raise TraceError(f"the limit of jobs must be at least 1, not {limit_jobs}")
    if seed < 0:
        raise TraceError(f"a seed must not be negative, and {seed} is")
    is_path = allow_paths and Path(name).is_file()
    if name in PROFILES and not is_path:
        if chosen.jobs is None and limit_jobs is not None:
            chosen = replace(chosen, jobs=limit_jobs)
        workload = _synthetic(name, throughputs, gpu_type, seed, chosen)
    else:
        workload = _from_file(Path(name) if is_path else _path_of(name), throughputs, gpu_type, seed, chosen)
    return workload if limit_jobs is None else workload.first(limit_jobs)


def reference_gpu_type(workload: Workload) -> str:
    """Return the GPU type of the workload's durations and requests; every model was measured on it."""
    return next(iter(workload.profiles[0].by_kind))


def gpu_types_of(workload: Workload) -> tuple[str, ...]:
    """Return every GPU type on which one of the workload's models was measured, the reference first."""
    return tuple(dict.fromkeys(kind for profile in workload.profiles for kind in profile.by_kind))


@dataclass(frozen=True, slots=True)
class TraceListing:
    """A trace on offer. ``available``: it is synthetic or its file exists; ``original``: where it was
    published. ``jobs``: None if counting them would need the whole file. The last three are the cluster on
    which its authors simulate it, if known.
    """

    name: str
    kind: str
    description: str
    jobs: int | None
    available: bool
    original: str = ""
    servers: int | None = None
    gpus_per_server: int | None = None
    slot_seconds: float | None = None


def available_traces() -> tuple[TraceListing, ...]:
    """Return synthetic profiles, the public traces, and other traces in the traces folder.

    Raises TraceError if `PUNCTUAL_TRACES` names no folder.
    """
    folder = traces_folder()
    listings = [
        TraceListing(known.name, "synthetic", known.description, known.shape().jobs, True)
        for known in PROFILES.values()
    ]
    listings += [
        TraceListing(
            known.name,
            "public",
            known.description,
            known.jobs,
            folder is not None and (folder / known.place).is_file(),
            known.original,
            known.servers,
            known.gpus_per_server,
            known.slot_seconds,
        )
        for known in PUBLIC_TRACES.values()
    ]
    if folder is not None:
        listings += _other_files(folder)
    return tuple(listings)


def _other_files(folder: Path) -> Iterator[TraceListing]:
    known = {folder / trace.place for trace in PUBLIC_TRACES.values()}
    for path in sorted(folder.rglob("*.csv")):
        if path not in known:
            with path.open("rb") as file:
                header = file.readline(4096).decode("utf-8", errors="replace").strip().split(",")
            try:
                found = detect_format(TraceFile(path, tuple(header), ()))
            except TraceError:
                continue  # a table of something else
            name = str(path.relative_to(folder).with_suffix(""))
            yield TraceListing(name, "file", found.description, None, True)


def _path_of(name: str) -> Path:
    if Path(name).is_absolute() or name.startswith((".", "~")):
        raise TraceError("there is no such trace file", path=Path(name))
    try:
        return find_trace(name)
    except TraceError as error:
        if name in PUBLIC_TRACES or "could be any" in str(error):
            raise
        public = listed(list(PUBLIC_TRACES), most=16)
        raise TraceError(
            f"{error}; synthetic profiles are {listed(list(PROFILES))}; public traces are {public}; or give "
            f"a file's path"
        ) from None


def _synthetic(
    name: str, throughputs: Path | None, gpu_type: str | None, seed: int, options: WorkloadOptions
) -> Workload:
    table = synthetic_throughputs() if throughputs is None else read_throughputs(throughputs)
    types, notes = _choose_gpu_types(ParsedTrace(()), table, gpu_type, USUAL_GPU_TYPE)
    workload = generate(name, table=table, gpu_types=types, seed=seed, options=options)
    return replace(workload, notes=(*workload.notes, *notes))


def _from_file(
    path: Path, throughputs: Path | None, gpu_type: str | None, seed: int, options: WorkloadOptions
) -> Workload:
    trace_format, parsed = read_trace(path, options)
    table = (
        read_throughputs(throughputs) if throughputs is not None else _usual_table(path, trace_format, parsed)
    )
    if trace_format is pollux.FORMAT:
        table = _with_pollux_tables(path, parsed, table)
    types, notes = _choose_gpu_types(parsed, table, gpu_type, trace_format.usual_gpu_type)
    workload = assemble(
        parsed,
        name=path.stem,
        source=f"{path} (format {trace_format.name}), seed {seed}; throughputs: {table.source}, {types[0]}",
        table=table,
        gpu_types=types,
        seed=seed,
        options=options,
        notes=notes,
    )
    return with_goodput(workload, pollux.tables_folder(path))


def _usual_table(path: Path, trace_format: TraceFormat, parsed: ParsedTrace) -> ThroughputTable:
    """Return the table beside the trace, or the built-in one if the trace names no model or only built-in
    ones."""
    named = {job.model for job in parsed.jobs if job.model is not None}
    if named and named <= set(NETWORKS):
        return synthetic_throughputs()
    folders = [*path.resolve().parents[:FOLDERS_ABOVE]]
    shared = traces_folder()
    if shared is not None:
        folders.append(shared)
    for folder in folders:
        for name, places in TABLE_PLACES[trace_format.models_measured_by].items():
            table = next(
                (folder / place / name for place in places if (folder / place / name).is_file()), None
            )
            if table is not None:
                return read_throughputs(table)
        if trace_format.models_measured_by == LONG_TABLE and any(folder.glob("throughputs_*/*.csv")):
            return read_throughputs(folder)
    if not named:
        return synthetic_throughputs()
    if trace_format is pollux.FORMAT and pollux.tables_folder(path) is not None:
        return ThroughputTable("no throughput table", {})
    raise TraceError(
        f"no throughput table ({trace_format.models_measured_by}) was found for the trace's models; name "
        f"one with --throughputs, or set {VARIABLE}; public ones: "
        f"{THROUGHPUTS[trace_format.models_measured_by]}",
        path=path,
    )


def _with_pollux_tables(path: Path, parsed: ParsedTrace, table: ThroughputTable) -> ThroughputTable:
    """Add batches that only Pollux's own tables cover."""
    folder = pollux.tables_folder(path)
    if folder is None:
        return table
    more: dict[tuple[str, int], Points] = {}
    for job in parsed.jobs:
        pair = (job.model or "", job.global_batch_size)
        if pair not in more and not table.points.get(pair, {}).get(POLLUX_GPU_TYPE):
            points = pollux_points(folder, *pair)
            if points:
                more[pair] = {POLLUX_GPU_TYPE: points}
    return table.extended(more, str(folder)) if more else table


def _choose_gpu_types(
    parsed: ParsedTrace, table: ThroughputTable, asked: str | None, usual: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the table's GPU types, the reference first, and a note if it is not the requested one."""
    named = {(job.model, job.global_batch_size): job for job in parsed.jobs if job.model is not None}
    complete = [
        kind
        for kind in table.gpu_types
        if all(table.points.get((model or "", batch), {}).get(kind) for model, batch in named)
    ]
    if asked and not named:
        table.gpu_type_named(asked)  # models are drawn: any type of the table is valid
    notes: tuple[str, ...] = ()
    wanted = [name.lower() for name in ([asked] if asked else [usual, USUAL_GPU_TYPE])]
    reference = next((kind for name in wanted for kind in complete if kind.lower() == name), None)
    if reference is None and len(complete) == 1:
        reference = complete[0]
        if asked:
            notes = (f"the trace's models were measured on {reference} only: it takes the place of {asked}",)
    if reference is None:
        raise _no_gpu_type(asked, complete, parsed, table)
    return (reference, *(kind for kind in table.gpu_types if kind != reference)), notes


def _no_gpu_type(
    asked: str | None, complete: Sequence[str], parsed: ParsedTrace, table: ThroughputTable
) -> TraceError:
    if complete:
        was = f"on {quoted(asked)}" if asked else "on one GPU type alone"
        return TraceError(
            f"the trace's models were not measured {was}; choose one of {listed(list(complete))} with "
            f"--gpu-type"
        )
    for job in parsed.jobs:
        if job.model is not None and not table.points.get((job.model, job.global_batch_size)):
            return unknown_model(job, table)
    return TraceError(f"no GPU type in {table.source} has throughputs of all of the trace's models")
