"""Formats of sparse tensors on the wire: their sizes, and the smallest one (Zen 3.3.4, Figure 3.17).

Sizes are relative to the dense tensor. One index addresses a *unit*: an element as in the paper, or a whole
row of an embedding table, whose gradients are non-zero together.
"""

from __future__ import annotations

from enum import StrEnum

INDEX_BYTES = 4
VALUE_BYTES = 4
BLOCK_VALUES = 256
"""Values of a block of OmniReduce."""


class Format(StrEnum):
    """The wire format of a tensor with zeros."""

    DENSE = "dense"
    #: Indices and values.
    COO = "coo"
    #: A bit for each unit of the whole tensor from each server, and values: hashed parts without tables
    #: would need it.
    BITMAP = "bitmap"
    #: A bit for each unit that a server owns, and values.
    HASH_BITMAP = "hash_bitmap"
    #: Blocks of 256 values with one non-zero at least.
    BLOCKS = "blocks"


def relative_size(form: Format, density: float, servers: int = 1, width: int = 1) -> float:
    """Return the bytes that a worker receives over those of the dense tensor.

    Args:
        density: share of units that are not zero, after aggregation.
        servers: how many servers they come from.
        width: values of a unit.
    """
    if form is Format.DENSE:
        return 1.0
    if form is Format.COO:
        return density * (1.0 + INDEX_BYTES / (VALUE_BYTES * width))
    if form is Format.BLOCKS:
        return block_density(density, width)
    bitmaps = servers if form is Format.BITMAP else 1
    return density + bitmaps / (8 * VALUE_BYTES * width)


def block_density(density: float, width: int = 1, block: int = BLOCK_VALUES) -> float:
    """Return the share of blocks with at least one non-zero, for units at random places. A unit of at least
    a block's length fills its own blocks."""
    if width >= block:
        return density
    return float(1.0 - (1.0 - density) ** (block / width))


def smallest_format(density: float, width: int = 1) -> Format:
    """Return the smallest of dense, hash bitmap and COO; of equally small ones the first.

    For elements: dense from 31/32 on, hash bitmap above 1/32, else COO.
    """
    return min(
        (Format.DENSE, Format.COO, Format.HASH_BITMAP),
        key=lambda form: relative_size(form, density, width=width),
    )
