"""Parsed rows of a trace, before models, deadlines and classes that it leaves open are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scheduling.core.question.snapshot import ServiceClass
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.trace_file import TraceRow


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job of a trace. None means that the trace does not say.

    ``model``: None means that model and batch are drawn from the measured ones, and iterations follow from
    the duration. ``iterations``: None means ``floor(requested_seconds * throughput)``. ``requested_seconds``:
    None means iterations over throughput. ``deadline_at``: None means drawn around the duration.
    ``service_class``: None means ``slo``, except for the shares that the options turn into others.
    ``deadline_factor``: the deadline as a multiple of the duration, if the trace has it.
    ``worker_counts``: the numbers of workers that its function allows; empty for powers of two.
    ``worker_memory_bytes``: host memory of one worker; None means the throughput table's value.
    """

    row: TraceRow
    job_id: str
    submitted_at: float
    model: str | None = None
    global_batch_size: int = 0
    iterations: float | None = None
    requested_gpus: int | None = None
    requested_seconds: float | None = None
    deadline_at: float | None = None
    deadline_factor: float | None = None
    service_class: ServiceClass | None = None
    worker_counts: tuple[int, ...] = ()
    worker_memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class ParsedTrace:
    """The jobs of one trace, in any order, and a sentence on each change made to it."""

    jobs: Sequence[JobRecord]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """Reader of one kind of trace.

    ``required`` and ``optional`` give, by the name used here, the column names accepted in the file.
    ``usual_gpu_type``: the type on which the format's models were measured, used if several are possible.
    """

    name: str
    description: str
    required: Mapping[str, tuple[str, ...]]
    read: Callable[[Sequence[TraceRow], WorkloadOptions], ParsedTrace]
    optional: Mapping[str, tuple[str, ...]]
    usual_gpu_type: str = "A100"
    models_measured_by: str = "throughput.csv"

    def fits(self, header: Sequence[str]) -> bool:
        """Return whether all required columns are in the header."""
        return not self.missing(header)

    def missing(self, header: Sequence[str]) -> list[str]:
        """Return the required columns that the header lacks."""
        return [names[0] for names in self.required.values() if not set(names) & set(header)]


def same(*names: str) -> dict[str, tuple[str, ...]]:
    """Return columns with one accepted name each."""
    return {name: (name,) for name in names}
