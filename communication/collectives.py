"""Bytes that a participant receives in a collective operation among n participants."""

from __future__ import annotations

from math import ceil, log2


def all_reduce_bytes(participants: int, size_bytes: float) -> float:
    """Return the bytes of a ring all-reduce: every part except the own one twice, 2 (n - 1) / n of all."""
    return 2.0 * (participants - 1) / participants * size_bytes


def reduce_scatter_bytes(participants: int, size_bytes: float) -> float:
    """Return the bytes of a reduce-scatter or all-to-all: (n - 1) / n of ``size_bytes``."""
    return (participants - 1) / participants * size_bytes


def all_gather_bytes(participants: int, payload_bytes: float) -> float:
    """Return the bytes of an all-gather, or of a gather at its root: ``payload_bytes`` from each other
    one."""
    return (participants - 1) * payload_bytes


def tree_bytes(participants: int, size_bytes: float) -> float:
    """Return the bytes of a binary-tree broadcast or reduction: ⌈log2 n⌉ successive rounds of all bytes."""
    return ceil(log2(participants)) * size_bytes
