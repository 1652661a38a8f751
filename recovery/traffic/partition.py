"""Checkpoint partition: a checkpoint cut into chunks that fit the idle spans (Gemini, Algorithm 6.2,
corrected).

The printed listing subtracts the time of the remaining bytes from a span instead of the chunk's, never
terminates if a span is shorter than a startup, and returns sizes without span or replica. `partition` is the
corrected form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from recovery.traffic.link import Link, SubBuffers

#: Share of an idle span that may be used.
USABLE_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one replica's traffic. ``span``: index of its idle span. ``offset``: within the replica."""

    span: int
    #: Number of the replica.
    replica: int
    offset: int
    #: Bytes.
    size: int


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """The chunks to send. ``extension_seconds``: time that the last span's chunks add to the iteration."""

    chunks: tuple[Chunk, ...]
    extension_seconds: float

    @property
    def bytes(self) -> int:
        """Total size of all chunks."""
        return sum(chunk.size for chunk in self.chunks)


def partition(
    spans: Sequence[float],
    checkpoint_bytes: int,
    replicas: int,
    link: Link,
    buffers: SubBuffers,
    usable_share: float = USABLE_SHARE,
) -> TrafficPlan:
    """Cut ``replicas`` - 1 times ``checkpoint_bytes`` into chunks for these idle spans, in seconds and in
    order.

    The last span takes all that is left. Raises ValueError for no span, a negative span, a share outside
    (0, 1], and less than one replica.
    """
    if not spans or min(spans) < 0.0:
        raise ValueError("an iteration has at least one idle span, and none is negative")
    if not 0.0 < usable_share <= 1.0:
        raise ValueError(f"usable_share must lie above 0 and up to 1, not {usable_share}")
    if replicas < 1 or checkpoint_bytes < 0:
        raise ValueError("replicas are at least 1, and a checkpoint's bytes are not negative")
    total = (replicas - 1) * checkpoint_bytes
    sent = 0
    chunks: list[Chunk] = []
    last = len(spans) - 1
    for number, span in enumerate(spans):
        left = inf if number == last else usable_share * span
        while sent < total:
            fits = buffers.chunk_bytes if left >= link.seconds(buffers.chunk_bytes) else link.bytes_in(left)
            replica, offset = divmod(sent, checkpoint_bytes)
            size = min(fits, buffers.chunk_bytes, checkpoint_bytes - offset)
            if size <= 0:
                break
            chunks.append(Chunk(number, replica, offset, size))
            sent += size
            left -= link.seconds(size)
    in_last = sum(link.seconds(chunk.size) for chunk in chunks if chunk.span == last)
    return TrafficPlan(tuple(chunks), max(0.0, in_last - spans[last]))
