"""Pipelining of all-to-all with expert computation, in closed form (Lina 4.3; step T3)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PipelinedBlock:
    """Times of one expert block since the start of its first all-to-all, in the unit of the inputs.

    Attributes:
        arrived: when each piece of the first all-to-all has arrived.
        computed: when the experts have computed each piece.
        returned: when each piece of the second all-to-all has arrived; the last one ends the block.
    """

    arrived: tuple[float, ...]
    computed: tuple[float, ...]
    returned: tuple[float, ...]


def pipeline_block(all_to_all: float, computation: float, pieces: int) -> PipelinedBlock:
    """Return the times of a block in equal pieces on an otherwise idle link.

    A piece is computed once it has arrived and the piece before it is computed. The pieces of the second
    all-to-all follow those of the first. One piece means no pipelining: 2 · all_to_all + computation.

    Raises:
        ValueError: a duration is negative, or `pieces` is less than 1.
    """
    if min(all_to_all, computation) < 0:
        raise ValueError(f"durations are {all_to_all:g} and {computation:g}; they must be at least 0")
    if pieces < 1:
        raise ValueError(f"pieces is {pieces}; it must be at least 1")
    arrived, computed, returned = [], [], []
    compute_end, link_end = 0.0, all_to_all
    for piece in range(1, pieces + 1):
        arrived.append(piece * all_to_all / pieces)
        compute_end = max(compute_end, arrived[-1]) + computation / pieces
        link_end = max(link_end, compute_end) + all_to_all / pieces
        computed.append(compute_end)
        returned.append(link_end)
    return PipelinedBlock(tuple(arrived), tuple(computed), tuple(returned))
