"""Tensor partitioning: tensors are cut into micro-operations, so that a running one delays others briefly.

Lina 4.2 (thesis).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

#: Most bytes of a micro-operation (30 MB in the paper).
PARTITION_BYTES = 30_000_000


class Traffic(IntEnum):
    """Classes of communication, in order of priority."""

    ALL_TO_ALL = 0
    ALL_REDUCE = 1


@dataclass(frozen=True, slots=True)
class MicroOperation:
    """A piece of the exchange of one tensor. A piece never holds two tensors.

    Attributes:
        traffic: class.
        tensor: name of the tensor; the same on all ranks, unique among unfinished operations.
        piece: index of the piece.
        pieces: pieces of the tensor.
        first: start of the piece: elements of a flat gradient, or rows of the capacity axis.
        length: length of the piece, in the same unit.
        lane: all-reduces of one lane start in the same order on all ranks; the order between lanes may
        differ.
    """

    traffic: Traffic
    tensor: str
    piece: int = 0
    pieces: int = 1
    first: int = 0
    length: int = 0
    lane: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.piece < self.pieces:
            raise ValueError(f"piece is {self.piece}; it must lie between 0 and {self.pieces - 1}")


def piece_lengths(length: int, pieces: int) -> tuple[int, ...]:
    """Return the lengths of the pieces of a tensor: ceil(length / pieces) each, the last one shorter.

    There may be fewer pieces than asked for, as with `torch.chunk`: 6 into 4 gives 2, 2, 2. An empty tensor
    has no piece.

    Raises:
        ValueError: `length` is negative, or `pieces` is less than 1.
    """
    if length < 0:
        raise ValueError(f"length is {length}; it must be at least 0")
    if pieces < 1:
        raise ValueError(f"pieces is {pieces}; it must be at least 1")
    if length == 0:
        return ()
    each = math.ceil(length / pieces)
    whole, rest = divmod(length, each)
    return (each,) * whole + ((rest,) if rest else ())


def count_pieces(size_bytes: float, partition_bytes: float = PARTITION_BYTES) -> int:
    """Return the number of pieces of a tensor.

    All ranks must cut alike: for an uneven all-to-all, `size_bytes` is the largest over the ranks.

    Raises:
        ValueError: `size_bytes` is negative, or `partition_bytes` is not positive.
    """
    if size_bytes < 0:
        raise ValueError(f"size_bytes is {size_bytes:g}; it must be at least 0")
    if not partition_bytes > 0:
        raise ValueError(f"partition_bytes is {partition_bytes:g}; it must be above 0")
    return max(1, math.ceil(size_bytes / partition_bytes))


def cut(
    traffic: Traffic,
    tensor: str,
    length: int,
    element_bytes: int,
    partition_bytes: float = PARTITION_BYTES,
    lane: str = "",
) -> tuple[MicroOperation, ...]:
    """Return the micro-operations of one tensor in order; none for an empty tensor.

    Args:
        length: elements of a flat gradient, or rows of the axis along which an all-to-all is cut.
        element_bytes: bytes of one element. For an all-to-all, bytes of one row over all experts, so that
            every piece has rows for every destination.
    """
    lengths = piece_lengths(length, count_pieces(length * element_bytes, partition_bytes))
    each = lengths[0] if lengths else 0
    return tuple(
        MicroOperation(traffic, tensor, piece, len(lengths), piece * each, piece_length, lane)
        for piece, piece_length in enumerate(lengths)
    )
