"""What a participant receives in a collective operation among n of them, in bytes (Espresso 2.2)."""

from __future__ import annotations

from math import ceil, log2


def all_reduce_bytes(participants: int, size_bytes: float) -> float:
    """Ring all-reduce of ``size_bytes``: every part twice but the own one, 2 (n - 1) / n of it."""
    return 2.0 * (participants - 1) / participants * size_bytes


def reduce_scatter_bytes(participants: int, size_bytes: float) -> float:
    """Everybody keeps one part, or in an all-to-all exchange gets one of each: (n - 1) / n of all bytes."""
    return (participants - 1) / participants * size_bytes


def all_gather_bytes(participants: int, payload_bytes: float) -> float:
    """Everybody gets the payloads of all others, of ``payload_bytes`` each; so does the root of a gather."""
    return (participants - 1) * payload_bytes


def tree_bytes(participants: int, size_bytes: float) -> float:
    """Broadcast or reduction of ``size_bytes`` by a binary tree: one after the other in ⌈log2 n⌉ rounds."""
    return ceil(log2(participants)) * size_bytes
