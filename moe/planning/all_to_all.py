"""Predicted time of an all-to-all of experts, by the workers on each server (Lina 4.4, evenly loaded)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ExchangeLinks:
    """Links of a placement: one GPU's way to the others of its server, and a server's network interface,
    which its GPUs share."""

    within_bytes_per_second: float
    between_bytes_per_second: float
    latency_seconds: float = 0.0


def bytes_within(workers: int, total: int, payload_bytes: float) -> float:
    """Return the bytes that a worker sends to others of its server.

    Args:
        workers: on its server. total: of the job.
        payload_bytes: rows of one worker, its own included.
    """
    return payload_bytes * (workers - 1) / total


def bytes_between(workers: int, total: int, payload_bytes: float) -> float:
    """Return the bytes that a server with so many workers sends to other servers."""
    return workers * payload_bytes * (total - workers) / total


def all_to_all_seconds(workers_by_server: Sequence[int], payload_bytes: float, links: ExchangeLinks) -> float:
    """Return the time of one all-to-all, in which every worker sends equally many rows to each.

    Args:
        workers_by_server: on each server that has any.
        payload_bytes: rows of one worker, its own included.
    """
    total = sum(workers_by_server)
    if total <= 1:
        return 0.0
    return links.latency_seconds + max(
        max(
            bytes_within(workers, total, payload_bytes) / links.within_bytes_per_second,
            bytes_between(workers, total, payload_bytes) / links.between_bytes_per_second,
        )
        for workers in workers_by_server
    )
