"""What every communication plan tells: its prediction, and a digest that all ranks compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one iteration under a plan is expected to take.

    Attributes:
        iteration_seconds: from start to start.
        bytes_between: that one server receives from the others. bytes_within: that one GPU receives from
            those of its server.
        device_seconds: in which one GPU encodes and decodes. host_seconds: the same for the processors of
            one server.
        exposed_seconds: in which the iteration waits for communication alone.

    Raises ValueError for negative or endless values.
    """

    iteration_seconds: float
    bytes_between: float
    bytes_within: float
    device_seconds: float = 0.0
    host_seconds: float = 0.0
    exposed_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} of a plan are finite and not negative, not {value}")


Stage = Literal["backward", "encode", "exchange", "decode"]
#: What a stage occupies: a GPU, a server's processors, the links within a server or between servers.
Resource = Literal["gpu", "processors", "within", "between"]


@dataclass(frozen=True, slots=True)
class PredictedSpan:
    """What is to be done to a group of gradients, in seconds from the beginning of the backward pass.

    ``group``: its number in order of readiness.
    """

    stage: Stage
    resource: Resource
    group: int
    begin_seconds: float
    end_seconds: float


class CommunicationPlan(Protocol):
    """How a job's gradients are sent in one generation."""

    @property
    def planner(self) -> str:
        """Who made it: `dense`, `zen`, `cupcake`, `espresso`, ..."""

    @property
    def lossless(self) -> bool:
        """Whether every gradient arrives as it was computed."""

    @property
    def predicted(self) -> Prediction:
        """What an iteration takes."""

    @property
    def buffer_bytes(self) -> int:
        """Of device memory that it needs on each GPU: flat gradients, residuals, payloads."""

    def to_message(self) -> dict[str, Any]:
        """What ranks carry out, as plain values, with its `digest`. The prediction is not part of it."""

    @property
    def digest(self) -> str:
        """SHA-256 of what ranks carry out (`content_digest`); all of them must have the same."""


def content_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of plain values without `digest`: JSON, keys sorted, no spaces.

    Raises ValueError for values that JSON cannot tell (NaN, infinity); TypeError for others than plain ones.
    """
    told = {name: value for name, value in content.items() if name != "digest"}
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
