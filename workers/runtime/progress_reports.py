"""Tells the agent how training goes, often enough to follow and seldom enough to cost nothing."""

from __future__ import annotations

import time
from collections import deque

from workers.runtime.connection import AgentConnection
from workers.runtime.host_memory import peak_bytes
from workers.runtime.iteration import IterationResult, finite

PHASE_PERIOD_SECONDS = 0.25
METRICS_PERIOD_SECONDS = 0.25
MEMORY_PERIOD_SECONDS = 2.0
RATE_WINDOW_SECONDS = 10.0
HISTORY_POINTS = 500


class IterationRate:
    """Iterations per second over the last seconds of wall-clock, evaluations and checkpoints included."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def mark(self, iteration: int) -> float | None:
        """Note that `iteration` is done; returns the rate, None before there are two marks."""
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
        """The state is loaded; the clock of the rate starts."""
        self._connection.phase("training", iteration)
        self._rate.mark(iteration)

    def iteration_done(
        self, iteration: int, result: IterationResult, evaluated: dict[str, float], *, urgent: bool = False
    ) -> None:
        """`iteration` iterations are done, the last with `result`."""
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
        """The most that this worker has taken of its host, now and then: looking takes a while."""
        if now - self._memory_looked_at < MEMORY_PERIOD_SECONDS:
            return {}
        self._memory_looked_at = now
        return {"host_memory_bytes": peak_bytes()}


def history_stride(max_iterations: int | None) -> int:
    """Every how many iterations the kept history has a point: the same on any number of workers."""
    return max(1, -(-(max_iterations or 100_000) // HISTORY_POINTS))
