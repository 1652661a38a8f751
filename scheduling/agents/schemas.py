"""Shapes of what agents send. What an agent reports is untrusted input: checked, and capped in size."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
JobId = Annotated[str, Field(min_length=1, max_length=16)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class _Loose(BaseModel):
    """Fields that a newer agent adds are ignored."""

    model_config = ConfigDict(extra="ignore")


class GpuEntry(_Loose):
    index: Annotated[int, Field(ge=0, le=1023)]
    uuid: Annotated[str, Field(max_length=100)] = ""
    kind: Annotated[str, Field(min_length=1, max_length=100)]
    memory_bytes: Count | None = 0
    emulated: bool = False


class Inventory(_Loose):
    gpus: Annotated[list[GpuEntry], Field(max_length=1024)]
    hostname: Annotated[str, Field(max_length=255)] = ""
    cpu_cores: Count | None = 0
    memory_bytes: Count | None = 0
    sandbox: Literal["namespaces", "user", "none"] = "none"


class Enrolment(_Loose):
    token: Annotated[str, Field(max_length=200)]
    name: Name
    address: Annotated[str, Field(min_length=1, max_length=255)]
    port_range: tuple[int, int]
    inventory: Inventory
    agent_version: Annotated[str, Field(max_length=40)] = ""
    rack: Annotated[str, Field(max_length=100)] = ""


class WorkerEntry(_Loose):
    key: Annotated[str, Field(max_length=100)] = ""
    job: JobId
    generation: Count
    rank: Count
    gpu_index: Count
    phase: Annotated[str, Field(max_length=20)]
    iteration: Count | None = None
    exit: dict[str, Any] | None = None


class MetricEntry(_Loose):
    job: JobId
    generation: Count
    iteration: Count
    values: Annotated[dict[str, float | None], Field(max_length=100)] = {}
    iterations_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    train_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    age_seconds: Seconds = 0.0


class LogEntry(_Loose):
    job: JobId
    generation: Count
    rank: Count
    offset: Count
    text: Annotated[str, Field(max_length=262_144)]


class EventEntry(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: UUID
    kind: Annotated[str, Field(max_length=40)]
    job: JobId
    generation: Count
    age_seconds: Seconds = 0.0


class Report(_Loose):
    sequence: Count
    boot_id: Annotated[str, Field(max_length=64)]
    epoch_seen: Count = 0
    desired_version: Count = 0
    inventory: Inventory | None = None
    workers: Annotated[list[WorkerEntry], Field(max_length=10_000)]
    events: Annotated[list[EventEntry], Field(max_length=10_000)] = []
    metrics: Annotated[list[MetricEntry], Field(max_length=50_000)] = []
    logs: Annotated[list[LogEntry], Field(max_length=5_000)] = []
