"""A node agent's report: its envelope, and its items, which are checked one by one (docs/protocols.md
2.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from punctual.protocol import limits
from punctual.protocol.events import EVENTS, EventHead
from punctual.protocol.fields import (
    Age,
    Count,
    GpuIndex,
    JobId,
    Label,
    Message,
    Metrics,
    Number,
    ShortText,
    Text,
    TrainSeconds,
)
from punctual.protocol.links import ServerLinks
from punctual.protocol.serving import ServingEntry

Phase = Literal[
    "starting",
    "preparing",
    "ready",
    "loading",
    "training",
    "handing_over",
    "handed_over",
    "suspending",
    "suspended",
    "finishing",
    "completed",
    "failed",
    "profiling",
    "serving",
    "draining",
    "exited",
]
LOG_PIECE_CHARACTERS = 262_144
#: 0 for a worker that has just begun, or makes no progress.
RateOrZero = Annotated[float, Field(ge=0, le=limits.FASTEST_RATE, allow_inf_nan=False)]
Uncut = Annotated[
    str,
    BeforeValidator(
        lambda text: limits.clean_text(text, LOG_PIECE_CHARACTERS + 1) if isinstance(text, str) else text
    ),
    Field(max_length=LOG_PIECE_CHARACTERS),
]


class Exit(Message):
    """How a worker's process ended."""

    code: Annotated[int, Field(ge=-limits.LARGEST_NUMBER, le=limits.LARGEST_NUMBER)] | None = None
    signal: Number | None = None
    reason: ShortText = ""
    message: Text | None = None


class WorkerEntry(Message):
    """A worker that exists on the node."""

    key: Label = ""
    job: JobId
    generation: Number
    rank: Number
    gpu_index: GpuIndex
    phase: Phase
    iteration: Count | None = None
    #: How long it has only had to load its state; None before.
    ready_age_seconds: Age | None = None
    exit: Exit | None = None


class Measurement(Message):
    """A function's measurements at one iteration, from its worker."""

    iteration: Count
    values: Metrics = {}
    iterations_per_second: RateOrZero = 0.0
    train_seconds: TrainSeconds = 0.0
    #: Peak host memory of the worker; 0 if not measured.
    host_memory_bytes: Count = 0


class MetricEntry(Measurement):
    """A measurement as its agent reports it."""

    job: JobId
    generation: Number
    age_seconds: Age = 0.0


class LogEntry(Message):
    """A piece of one worker's output. `offset`: in bytes."""

    job: JobId
    generation: Number
    rank: Number
    offset: Count
    text: Uncut


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class GpuEntry(_Lenient):
    """A GPU, or a declared CPU slot."""

    index: GpuIndex
    uuid: Label = ""
    kind: Annotated[Label, Field(min_length=1)]
    memory_bytes: Count | None = 0
    emulated: bool = False


class Inventory(_Lenient):
    """A server's resources."""

    gpus: Annotated[list[GpuEntry], Field(max_length=limits.LARGEST_GPU_INDEX + 1)]
    hostname: Annotated[str, Field(max_length=255, pattern=r"^[\w.:-]*$")] = ""
    cpu_cores: Number | None = 0
    memory_bytes: Count | None = 0
    worker_memory_bytes: Count | None = 0
    memory_store_bytes: Count | None = 0
    disk_free_bytes: Count | None = 0
    worker_disk_bytes: Count | None = 0
    sandbox: Literal["namespaces", "user", "none"] = "none"
    links: ServerLinks | None = None


class Report(_Lenient):
    """The envelope. Its items are checked one by one, so that an invalid one does not affect the others."""

    sequence: Count
    boot_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,64}$")]
    epoch_seen: Count = 0
    desired_version: Count = 0
    inventory: Any = None
    workers: Annotated[list[Any], Field(max_length=10_000)]
    events: Annotated[list[Any], Field(max_length=10_000)] = []
    metrics: Annotated[list[Any], Field(max_length=50_000)] = []
    logs: Annotated[list[Any], Field(max_length=5_000)] = []
    link_load: Any = None
    link_probe: Any = None
    memory_store: Any = None
    serving: Annotated[list[Any], Field(max_length=5_000)] = []


@dataclass(frozen=True)
class RefusedItem:
    """An item of a report that is refused, and why. `job`: as claimed; `id`: of an event, if readable."""

    part: str
    index: int
    reason: str
    job: str | None = None
    id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the item as in the answer to the report."""
        return {key: value for key, value in self.__dict__.items() if value is not None}


@dataclass(frozen=True)
class CheckedItem:
    """A well-formed item of a report. `index`: its place in the report."""

    index: int
    value: dict[str, Any]


def check(model: type[BaseModel], value: Any) -> tuple[dict[str, Any] | None, str]:
    """Return the fields of a well-formed `value`, or None and its first problem."""
    try:
        return model.model_validate(value).model_dump(), ""
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return None, limits.clean_text(f"{place}: {first['msg']}" if place else str(first["msg"]), 300)


def check_event(value: Any) -> tuple[dict[str, Any] | None, str]:
    """Return the fields of a well-formed event, or None and its problem."""
    head, problem = check(EventHead, value)
    if head is None:
        return None, problem
    model = EVENTS.get(head["kind"])
    if model is None:
        return None, f"kind: {head['kind']!a} is no kind of event; there are {', '.join(EVENTS)}"
    body, problem = check(model, value)
    return (None, problem) if body is None else ({**head, **body}, "")


def check_items(part: str, values: Iterable[Any]) -> tuple[list[CheckedItem], list[RefusedItem]]:
    """Return the well-formed items of one part of a report (`workers`, `events`, `metrics`, `logs`,
    `serving`), and the others."""
    good: list[CheckedItem] = []
    refused: list[RefusedItem] = []
    for index, value in enumerate(values):
        found, problem = _CHECKS[part](value)
        if found is None:
            job, identifier = (
                (_readable(value, "job"), _readable(value, "id")) if isinstance(value, dict) else (None, None)
            )
            refused.append(RefusedItem(part, index, problem, job, identifier))
        else:
            good.append(CheckedItem(index, found))
    return good, refused


def _readable(value: dict[str, Any], name: str) -> str | None:
    text = value.get(name)
    return limits.clean_text(text, 40) if isinstance(text, str) else None


_CHECKS: dict[str, Callable[[Any], tuple[dict[str, Any] | None, str]]] = {
    "workers": lambda value: check(WorkerEntry, value),
    "events": check_event,
    "metrics": lambda value: check(MetricEntry, value),
    "logs": lambda value: check(LogEntry, value),
    "serving": lambda value: check(ServingEntry, value),
}
