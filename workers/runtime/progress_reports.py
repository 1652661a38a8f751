"""Reports of training progress to the agent, limited in frequency so that they cost nothing noticeable."""

from __future__ import annotations

import time
from collections import deque

from workers.runtime.connection import AgentConnection
from workers.runtime.host_memory import peak_bytes
from workers.runtime.iterating.iteration import IterationResult, finite

PHASE_PERIOD_SECONDS = 0.25
METRICS_PERIOD_SECONDS = 0.25
MEMORY_PERIOD_SECONDS = 2.0
RATE_WINDOW_SECONDS = 10.0
HISTORY_POINTS = 500


class IterationRate:
    """Iterations per second over the last RATE_WINDOW_SECONDS, evaluations and checkpoints included."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def mark(self, iteration: int) -> float | None:
        """Note that `iteration` is done; return the rate, or None before there are two marks."""
        now = time.perf_counter()
        self._marks.append((now, iteration))
        while len(self._marks) > 2 and now - self._marks[0][0] > RATE_WINDOW_SECONDS:
            self._marks.popleft()
        begun, first = self._marks[0]
        return (iteration - first) / (now - begun) if iteration > first and now > begun else None


class ProgressReports:
    """Phase and metrics of a training rank; only rank 0 reports metrics."""

    def __init__(self, connection: AgentConnection, rank: int) -> None:
        self._connection = connection
        self._rank = rank
        self._rate = IterationRate()
        self._phase_sent = 0.0
        self._metrics_sent = 0.0
        self._memory_looked_at = 0.0

    def training_begins(self, iteration: int) -> None:
        """Report that training begins and start measuring the rate."""
        self._connection.phase("training", iteration)
        self._rate.mark(iteration)

    def iteration_done(
        self, iteration: int, result: IterationResult, evaluated: dict[str, float], *, urgent: bool = False
    ) -> None:
        """Report, if due, that `iteration` iterations are done, the last with `result`."""
        now = time.monotonic()
        rate = self._rate.mark(iteration)
        if urgent or now - self._phase_sent >= PHASE_PERIOD_SECONDS:
            self._phase_sent = now
            self._connection.phase("training", iteration)
        if self._rank == 0 and (urgent or evaluated or now - self._metrics_sent >= METRICS_PERIOD_SECONDS):
            self._metrics_sent = now
            self._connection.metrics(
                iteration=iteration,
                values=finite({**result.values, **evaluated}),
                iterations_per_second=rate,
                train_seconds=result.train_seconds,
                **self._host_memory(now),
            )

    def _host_memory(self, now: float) -> dict[str, int]:
        """Return the worker's peak host memory, or {} between measurements, which are slow."""
        if now - self._memory_looked_at < MEMORY_PERIOD_SECONDS:
            return {}
        self._memory_looked_at = now
        return {"host_memory_bytes": peak_bytes()}


def history_stride(max_iterations: int | None) -> int:
    """Return the number of iterations between points of the history: the same for any number of workers."""
    return max(1, -(-(max_iterations or 100_000) // HISTORY_POINTS))
