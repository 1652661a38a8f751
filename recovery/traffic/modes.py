"""The checkpoint traffic modes that the paper compares: their iteration time and memory.

None, blocking, naive interleaving, interleaving without a pipeline, and Gemini's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from recovery.traffic.link import Link, SubBuffers, received_through
from recovery.traffic.partition import USABLE_SHARE, partition


class TrafficMode(StrEnum):
    """A way to send a checkpoint."""

    #: Nothing is sent.
    NONE = "none"
    #: The whole checkpoint is sent at the begin of the next iteration, which waits.
    BLOCKING = "blocking"
    #: One chunk in each idle span, so the buffer must hold what the longest span carries.
    NAIVE = "naive interleaving"
    #: Chunks in the idle spans, through one buffer: network and copy alternate.
    WITHOUT_PIPELINE = "interleaving without a pipeline"
    #: Chunks in the idle spans, through sub-buffers.
    GEMINI = "gemini"


@dataclass(frozen=True, slots=True)
class IterationTraffic:
    """One GPU's iteration and its checkpoint traffic.

    ``spans``: idle seconds in order. ``free_gpu_bytes``: memory available for buffers.
    """

    iteration_seconds: float
    spans: tuple[float, ...]
    checkpoint_bytes: int
    #: Number of copies of the state, including the GPU's own server's.
    replicas: int
    link: Link
    copy_bytes_per_second: float
    buffers: SubBuffers = SubBuffers()
    free_gpu_bytes: int = 2_000_000_000
    usable_share: float = USABLE_SHARE


@dataclass(frozen=True, slots=True)
class ModeOutcome:
    """An iteration under one mode. ``iteration_seconds`` is None if its buffers do not fit."""

    mode: TrafficMode
    iteration_seconds: float | None
    extension_seconds: float
    buffer_bytes: int

    @property
    def out_of_memory(self) -> bool:
        """Whether the mode cannot run."""
        return self.iteration_seconds is None


def iteration_under(mode: TrafficMode, traffic: IterationTraffic) -> ModeOutcome:
    """Return the iteration time under a mode, and the size of its buffers."""
    extension, buffer_bytes = 0.0, 0
    if mode is TrafficMode.BLOCKING:
        buffer_bytes = traffic.buffers.reserved_bytes
        extension = _back_to_back(traffic)
    elif mode is TrafficMode.NAIVE:
        buffer_bytes = _largest_span_bytes(traffic)
        extension = _interleaved(traffic, SubBuffers(max(1, buffer_bytes), 1), traffic.link)
    elif mode is TrafficMode.WITHOUT_PIPELINE:
        one = replace(traffic.buffers, count=1)
        buffer_bytes = one.reserved_bytes
        extension = _interleaved(
            traffic, one, received_through(traffic.link, traffic.copy_bytes_per_second, one)
        )
    elif mode is TrafficMode.GEMINI:
        buffer_bytes = traffic.buffers.reserved_bytes
        through = received_through(traffic.link, traffic.copy_bytes_per_second, traffic.buffers)
        extension = _interleaved(traffic, traffic.buffers, through)
    fits = buffer_bytes <= traffic.free_gpu_bytes
    seconds = traffic.iteration_seconds + extension if fits else None
    return ModeOutcome(mode, seconds, extension, buffer_bytes)


def _back_to_back(traffic: IterationTraffic) -> float:
    """Return the seconds to send everything at once, through sub-buffers."""
    through = received_through(traffic.link, traffic.copy_bytes_per_second, traffic.buffers)
    return partition(
        (0.0,), traffic.checkpoint_bytes, traffic.replicas, through, traffic.buffers
    ).extension_seconds


def _interleaved(traffic: IterationTraffic, buffers: SubBuffers, link: Link) -> float:
    plan = partition(
        traffic.spans, traffic.checkpoint_bytes, traffic.replicas, link, buffers, traffic.usable_share
    )
    return plan.extension_seconds


def _largest_span_bytes(traffic: IterationTraffic) -> int:
    """Return the bytes that the longest idle span carries at once; at most all of the traffic."""
    longest = max(traffic.spans) if traffic.spans else 0.0
    total = (traffic.replicas - 1) * traffic.checkpoint_bytes
    return min(total, traffic.link.bytes_in(longest))


def compare(
    traffic: IterationTraffic, modes: Sequence[TrafficMode] = tuple(TrafficMode)
) -> tuple[ModeOutcome, ...]:
    """Return an iteration under each of the modes."""
    return tuple(iteration_under(mode, traffic) for mode in modes)
