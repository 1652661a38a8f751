"""Workers' measurements that the control plane has not received yet."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import Any

from workers.agent.machine import clock
from workers.agent.processes.worker_messages import Metrics
from workers.agent.processes.worker_record import Assignment
from workers.agent.talking.fair_shares import in_turns

#: Limit for one generation; the oldest are dropped beyond it.
KEPT_OF_A_GENERATION = 500
GENERATIONS_KEPT = 1000


@dataclass(frozen=True)
class Measured:
    """One entry: its number in order of arrival, its size as JSON, and its arrival time."""

    number: int
    size_bytes: int
    at_boot_seconds: float
    entry: dict[str, Any]


class MetricBuffer:
    """Entries by generation: a worker that measures without pause loses only its own entries."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], deque[Measured]] = {}
        self._count = 0

    def add(self, assignment: Assignment, metrics: Metrics) -> None:
        """Add a worker's measurements."""
        entry: dict[str, Any] = {
            "job": assignment.job,
            "generation": assignment.generation,
            "iteration": metrics.iteration,
            "values": dict(metrics.values),
        }
        if metrics.iterations_per_second is not None:
            entry["iterations_per_second"] = metrics.iterations_per_second
        if metrics.train_seconds is not None:
            entry["train_seconds"] = metrics.train_seconds
        if metrics.host_memory_bytes is not None:
            entry["host_memory_bytes"] = metrics.host_memory_bytes
        key = (assignment.job, assignment.generation)
        if key not in self._queues and len(self._queues) >= GENERATIONS_KEPT:
            self._queues.pop(next(iter(self._queues)))
        queue = self._queues.setdefault(key, deque(maxlen=KEPT_OF_A_GENERATION))
        self._count += 1
        queue.append(Measured(self._count, len(json.dumps(entry)), clock.boot_time_seconds(), entry))

    def next(self, count: int, size_bytes: int) -> list[Measured]:
        """Return entries for a report, alternating between generations; at most `count` and, beyond the
        first, `size_bytes`."""
        chosen: list[Measured] = []
        for measured in in_turns([list(queue) for queue in self._queues.values()])[:count]:
            size_bytes -= measured.size_bytes
            if chosen and size_bytes < 0:
                break
            chosen.append(measured)
        return chosen

    def forget(self, delivered: list[Measured]) -> None:
        """Drop delivered entries."""
        numbers = {measured.number for measured in delivered}
        for key in list(self._queues):
            queue = self._queues[key]
            while queue and queue[0].number in numbers:
                queue.popleft()
            if not queue:
                del self._queues[key]

    def clear(self) -> None:
        """Drop everything."""
        self._queues.clear()
