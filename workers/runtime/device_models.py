"""Emulated accelerators: every gradient is computed for real, and each iteration takes the time of a device
model.

The model (docs/protocols.md, 3.1) is a fixed cost, a cost per local sample, and a ring all-reduce:

    seconds = fixed + per_sample * local_batch
            + (0 if n == 1 else latency * log2(n) + 2 (n - 1) / n * parameter_bytes / bandwidth)
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DeviceModel:
    """How long a declared accelerator takes.

    Attributes:
        parameter_bytes: bytes to synchronise per iteration; None takes the size of the model that is trained.
    """

    fixed_seconds: float
    seconds_per_sample: float
    latency_seconds: float
    intra_server_bytes_per_second: float
    inter_server_bytes_per_second: float
    parameter_bytes: float | None = None

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> DeviceModel:
        """Read the `model` of an emulated device.

        Raises:
            KeyError: a field is missing.
        """
        declared = message.get("parameter_bytes")
        return cls(
            fixed_seconds=float(message["fixed_seconds"]),
            seconds_per_sample=float(message["seconds_per_sample"]),
            latency_seconds=float(message["latency_seconds"]),
            intra_server_bytes_per_second=float(message["intra_server_bytes_per_second"]),
            inter_server_bytes_per_second=float(message["inter_server_bytes_per_second"]),
            parameter_bytes=None if declared is None else float(declared),
        )

    def compute_seconds(self, local_batch: int) -> float:
        """Forward and backward pass of `local_batch` samples."""
        return self.fixed_seconds + self.seconds_per_sample * local_batch

    def synchronisation_seconds(self, world_size: int, parameter_bytes: float, same_server: bool) -> float:
        """The gradients' all-reduce over `world_size` ranks."""
        if world_size == 1:
            return 0.0
        bandwidth = self.intra_server_bytes_per_second if same_server else self.inter_server_bytes_per_second
        volume = 2 * (world_size - 1) / world_size * (self.parameter_bytes or parameter_bytes)
        return self.latency_seconds * math.log2(world_size) + volume / bandwidth

    def iteration_seconds(
        self, local_batch: int, world_size: int, parameter_bytes: float, same_server: bool
    ) -> float:
        """One whole iteration."""
        return self.compute_seconds(local_batch) + self.synchronisation_seconds(
            world_size, parameter_bytes, same_server
        )


class Pacer:
    """Pads iterations to the seconds a device model gives.

    An iteration that the host machine computed too slowly is made up for by the next ones, at most by one
    iteration's time: the emulated device keeps its pace on a machine that is busy now and then, but a machine
    that is too slow altogether shows.
    """

    def __init__(self, iteration_seconds: float, compute_seconds: float) -> None:
        self.iteration_seconds = iteration_seconds
        self.compute_seconds = compute_seconds
        self._due: float | None = None

    def restart(self) -> None:
        """Forget the pace: something other than iterations took time."""
        self._due = None

    def pad(self, started: float) -> None:
        """Wait until the iteration that began at `started` (`time.perf_counter`) has lasted long enough."""
        begun = started
        if self._due is not None and 0 <= started - self._due <= self.iteration_seconds:
            begun = self._due
        self._due = begun + self.iteration_seconds
        remaining = self._due - time.perf_counter()
        if remaining > 0:
            time.sleep(remaining)
