"""The common parts of all communication plans: a prediction, and a digest that all ranks compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Prediction:
    """The expected cost of one iteration under a plan.

    Attributes:
        iteration_seconds: from start to start.
        bytes_between: that one server receives from the others. bytes_within: that one GPU receives from
            those of its server.
        device_seconds: for which one GPU encodes and decodes. host_seconds: the same for the processors of
            one server.
        exposed_seconds: for which the iteration waits only for communication.

    Raises ValueError for negative or infinite values.
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
                raise ValueError(f"{name} of the plan is {value}; it must be finite and not negative")


Stage = Literal["backward", "encode", "exchange", "decode"]
#: The resource of a stage: a GPU, a server's processors, the links within a server or between servers.
Resource = Literal["gpu", "processors", "within", "between"]


@dataclass(frozen=True, slots=True)
class PredictedSpan:
    """A planned stage of a group of gradients, in seconds from the beginning of the backward pass.

    ``group``: its number in order of readiness.
    """

    stage: Stage
    resource: Resource
    group: int
    begin_seconds: float
    end_seconds: float


def content_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain values without `digest`: JSON, keys sorted, no spaces.

    Raises ValueError for values that JSON cannot represent (NaN, infinity); TypeError for other types.
    """
    undigested = {name: value for name, value in content.items() if name != "digest"}
    canonical = json.dumps(undigested, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
