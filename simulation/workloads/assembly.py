"""From a parsed trace to a workload: profiles, and by seed whatever the trace leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import floor, inf

import numpy as np

from scheduling.core.question.snapshot import FloatArray, ServiceClass
from simulation.workloads.draws import WorkloadDraw, uniforms
from simulation.workloads.errors import TraceError, listed, quoted
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.records import JobRecord, ParsedTrace
from simulation.workloads.throughputs import ThroughputTable
from simulation.workloads.workload import ModelProfile, Workload

Pair = tuple[str, int]
#: Model and batch, numbers of workers, and bytes of one worker (-1: the table's value).
Profiled = tuple[Pair, tuple[int, ...], float]

# Measured, but not in the pool that ElasticFlow draws from: it hardly gains from a second GPU.
NOT_DRAWN = frozenset({"resnet50_cifar10"})

SYNTHETIC_NOTE = ("throughputs are synthetic: a device model, not measurements",)


def assemble(
    trace: ParsedTrace,
    *,
    name: str,
    source: str,
    table: ThroughputTable,
    gpu_types: Sequence[str],
    seed: int,
    options: WorkloadOptions,
    notes: tuple[str, ...] = (),
) -> Workload:
    """Return the workload of ``trace``, in order of submission; the first of ``gpu_types`` is the reference.

    Raises TraceError for duplicate ids and for models that were not measured on that type.
    """
    jobs = sorted(trace.jobs, key=lambda job: (job.submitted_at, job.job_id))
    _refuse_doubled_ids(trace.jobs)
    builder = _Builder(table, gpu_types[0], len(jobs), seed, options)
    for number, job in enumerate(jobs):
        builder.add(number, job)
    used = sorted(set(builder.profiled))
    index = {pair: at for at, pair in enumerate(used)}
    return Workload(
        name=name,
        source=source,
        job_id=tuple(job.job_id for job in jobs),
        service_class=tuple(builder.service_class),
        submitted_at=_floats([job.submitted_at for job in jobs]),
        deadline_at=_floats(builder.deadline_at),
        iterations=_floats(builder.iterations),
        profile_of=np.array([index[one] for one in builder.profiled], dtype=np.int64),
        requested_gpus=np.array(builder.requested_gpus, dtype=np.int64),
        requested_seconds=_floats(builder.requested_seconds),
        profiles=tuple(_profile(table, gpu_types, one) for one in used),
        notes=(*trace.notes, *notes, *(SYNTHETIC_NOTE if table.synthetic else ()), *builder.notes()),
    )


def _profile(table: ThroughputTable, gpu_types: Sequence[str], asked: Profiled) -> ModelProfile:
    pair, worker_counts, memory_bytes = asked
    profile = table.profile(pair, gpu_types)
    by_type = profile.by_kind
    if memory_bytes >= 0:
        by_type = {
            gpu_type: replace(points, memory_bytes=np.full(points.gpus.size, memory_bytes))
            for gpu_type, points in by_type.items()
        }
    return replace(profile, by_kind=by_type, worker_counts=worker_counts)


class _Builder:
    """Columns of the workload, built job by job."""

    def __init__(
        self, table: ThroughputTable, gpu_type: str, jobs: int, seed: int, options: WorkloadOptions
    ) -> None:
        self.table = table
        self.gpu_type = gpu_type
        self.options = options
        self.model_draw = uniforms(seed, WorkloadDraw.MODEL, jobs)[:, 0].tolist()
        self.deadline_draw = uniforms(seed, WorkloadDraw.DEADLINE, jobs).tolist()
        self.pool = drawable(table, gpu_type)
        self.feasible: dict[int, list[Pair]] = {}
        self.counts_of: dict[Pair, list[int]] = {}
        self.smaller_requests = 0
        self.profiled: list[Profiled] = []
        self.service_class: list[ServiceClass] = []
        self.deadline_at: list[float] = []
        self.iterations: list[float] = []
        self.requested_gpus: list[int] = []
        self.requested_seconds: list[float] = []

    def add(self, number: int, job: JobRecord) -> None:
        pair = self._pair(job, self.model_draw[number])
        self._require_measured(job, pair)
        gpus, as_asked = self._request(job, pair)
        throughput = self.table.points[pair][self.gpu_type][gpus]
        if job.iterations is not None:
            iterations = job.iterations
        else:
            assert job.requested_seconds is not None  # importers give one of the two
            iterations = float(max(1, floor(job.requested_seconds * throughput)))
        seconds = job.requested_seconds
        if seconds is None or (not as_asked and job.iterations is not None):
            seconds = iterations / throughput
        service_class = self._service_class(job, self.deadline_draw[number][1])
        memory = (
            self.options.worker_memory_bytes if job.worker_memory_bytes is None else job.worker_memory_bytes
        )
        self.profiled.append((pair, job.worker_counts, -1.0 if memory is None else memory))
        self.requested_gpus.append(gpus)
        self.iterations.append(iterations)
        self.requested_seconds.append(seconds)
        self.service_class.append(service_class)
        self.deadline_at.append(
            inf
            if service_class is ServiceClass.BEST_EFFORT
            else self._deadline(job, seconds, self.deadline_draw[number][0])
        )

    def notes(self) -> tuple[str, ...]:
        if not self.smaller_requests:
            return ()
        note = (
            f"{self.smaller_requests} jobs asked for a GPU count that was not measured for their model on "
            f"{self.gpu_type}: the nearest measured one is taken, the next smaller before a larger one"
        )
        return (note,)

    def _pair(self, job: JobRecord, draw: float) -> Pair:
        if job.model is not None:
            pair = (job.model, job.global_batch_size)
            if not self.table.points.get(pair, {}).get(self.gpu_type):
                raise unknown_model(job, self.table, self.gpu_type)
            return pair
        gpus = _power_of_two_at_most(job.requested_gpus or 1)
        if gpus not in self.feasible:
            self.feasible[gpus] = feasible_on(self.table, self.pool, self.gpu_type, gpus)
        choice = self.feasible[gpus]
        return choice[int(draw * len(choice))]

    def _require_measured(self, job: JobRecord, pair: Pair) -> None:
        """Raise TraceError if none of a job's numbers of workers can be simulated."""
        measured = self.table.points[pair][self.gpu_type]
        batch = pair[1]
        if job.worker_counts and not any(
            count in measured and batch % count == 0 for count in job.worker_counts
        ):
            known = listed([str(gpus) for gpus in sorted(measured)])
            raise job.row.error(
                "worker_counts",
                f"{pair[0]} with global batch {batch} was measured on {known} GPUs of type {self.gpu_type}; "
                f"none of these divides the batch and is in the list",
            )

    def _request(self, job: JobRecord, pair: Pair) -> tuple[int, bool]:
        """Return the measured GPU count that replaces the requested one, and whether they are equal."""
        if pair not in self.counts_of:
            self.counts_of[pair] = sorted(self.table.points[pair][self.gpu_type])
        counts = self.counts_of[pair]
        if job.requested_gpus is None or job.requested_gpus in counts:
            return job.requested_gpus or counts[0], True
        self.smaller_requests += 1
        return max((count for count in counts if count < job.requested_gpus), default=counts[0]), False

    def _service_class(self, job: JobRecord, draw: float) -> ServiceClass:
        if job.service_class is not None:
            return job.service_class
        if draw < self.options.best_effort_share:
            return ServiceClass.BEST_EFFORT
        if draw >= 1.0 - self.options.soft_share:
            return ServiceClass.SOFT
        return ServiceClass.SLO

    def _deadline(self, job: JobRecord, seconds: float, draw: float) -> float:
        if job.deadline_at is not None:
            return job.deadline_at
        factor = job.deadline_factor
        if factor is None:
            factor = self.options.tightest + draw * (self.options.loosest - self.options.tightest)
        return job.submitted_at + floor(factor * seconds)


def drawable(table: ThroughputTable, gpu_type: str) -> tuple[Pair, ...]:
    """Return the (model, batch) pairs from which models are drawn, each equally likely."""
    return tuple(pair for pair in table.measured_on(gpu_type) if pair[0] not in NOT_DRAWN)


def feasible_on(table: ThroughputTable, pool: Sequence[Pair], gpu_type: str, gpus: int) -> list[Pair]:
    """Return the pairs of ``pool`` measured on ``gpus`` GPUs, else those measured on the most GPUs.

    Raises TraceError if the pool is empty.
    """
    if not pool:
        raise TraceError(f"no model in {table.source} was measured on {gpu_type}, so none can be drawn")
    fitting = [pair for pair in pool if gpus in table.points[pair][gpu_type]]
    if fitting:
        return fitting
    most = max(max(table.points[pair][gpu_type]) for pair in pool)
    return [pair for pair in pool if most in table.points[pair][gpu_type]]


def unknown_model(job: JobRecord, table: ThroughputTable, gpu_type: str | None = None) -> TraceError:
    """Return the error for a model without throughput, which lists the models that have one."""
    known = [
        f"{model}/{batch}"
        for model, batch in (table.measured_on(gpu_type) if gpu_type else sorted(table.points))
    ]
    column = "model_name" if "model_name" in job.row.columns else "model"
    column = next((name for name in ("application", "job_type") if name in job.row.columns), column)
    on = f" on {gpu_type}" if gpu_type else ""
    return job.row.error(
        column,
        f"no throughput of model {quoted(job.model or '')} with global batch {job.global_batch_size}{on} "
        f"in {table.source}; model/batch known there: {listed(known)}",
    )


def _refuse_doubled_ids(jobs: Sequence[JobRecord]) -> None:
    first: dict[str, JobRecord] = {}
    for job in jobs:
        if job.job_id in first:
            column = next((name for name in ("job_id", "name") if name in job.row.columns), "job_id")
            raise job.row.error(
                column,
                f"{quoted(job.job_id)} is there twice, first on line {first[job.job_id].row.line}; ids are "
                f"unique",
            )
        first[job.job_id] = job


def _power_of_two_at_most(count: int) -> int:
    return 1 << (count.bit_length() - 1)


def _floats(values: Sequence[float]) -> FloatArray:
    return np.array(values, dtype=np.float64)
