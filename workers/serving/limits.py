"""Limits of one serving worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from punctual.protocol.limits import SERVING_ANSWER_SECONDS

#: Limit for all request bodies in memory together.
ALL_BODIES_BYTES = 64 << 20
#: Limit for one answer.
ANSWER_BYTES = 8 << 20
#: Maximum number of token digests that a worker compares.
TOKENS = 1000


@dataclass(frozen=True)
class ServingLimits:
    """Limits for batches and times.

    Attributes:
        most_inputs: maximum inputs of one call of `predict`, unless a single request has more.
        longest_wait_seconds: maximum time that the first request of a batch waits for others.
        most_waiting: maximum inputs in the queue; further requests are refused.
        answer_seconds: time after which a request is answered by a 504.
        predict_seconds: maximum time of one call of `predict`; the worker ends after a longer one.
        drain_quiet_seconds: a draining worker ends when no request came for this time.
        drain_seconds: a draining worker ends after this time at the latest.
    """

    most_inputs: int = 16
    longest_wait_seconds: float = 0.005
    most_waiting: int = 256
    answer_seconds: float = SERVING_ANSWER_SECONDS
    predict_seconds: float = SERVING_ANSWER_SECONDS
    drain_quiet_seconds: float = 1.0
    drain_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("most_inputs", "most_waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; the least is 1")
        for name, kind in self.__annotations__.items():
            if kind == "float" and not 0.0 <= getattr(self, name) <= 3600.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from 0 to 3600")

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> ServingLimits:
        """Read the part `serving` of an assignment. Raise TypeError or ValueError if it is invalid."""
        return cls(
            **{name: message[name] for name in cls.__dataclass_fields__ if message.get(name) is not None}
        )
