"""Pipelined transmission: chunks received into sub-buffers and copied to host memory (Gemini 6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recovery.traffic.link import Link


@dataclass(frozen=True, slots=True)
class Transmission:
    """The times at which each chunk was received and copied, in seconds from the beginning."""

    received_at: tuple[float, ...]
    copied_at: tuple[float, ...]

    @property
    def network_seconds(self) -> float:
        """Seconds until the last chunk was received."""
        return self.received_at[-1] if self.received_at else 0.0

    @property
    def seconds(self) -> float:
        """Seconds until the last chunk was copied."""
        return self.copied_at[-1] if self.copied_at else 0.0


def transmit(
    chunk_bytes: Sequence[int], link: Link, copy_bytes_per_second: float, buffers: int
) -> Transmission:
    """Return the times of chunks sent in sequence. Chunk j uses buffer j modulo ``buffers``, which is free
    once its previous chunk is copied.

    Raises ValueError without a buffer.
    """
    if buffers < 1:
        raise ValueError(f"there is at least one sub-buffer, not {buffers}")
    received: list[float] = []
    copied: list[float] = []
    for number, size in enumerate(chunk_bytes):
        before = received[-1] if received else 0.0
        free = copied[number - buffers] if number >= buffers else 0.0
        received.append(max(before, free) + link.seconds(size))
        copied.append(max(received[-1], copied[-1] if copied else 0.0) + size / copy_bytes_per_second)
    return Transmission(tuple(received), tuple(copied))
