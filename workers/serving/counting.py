"""A serving worker's counts of requests (`punctual.protocol.serving.ServingCounts`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from punctual.protocol.latencies import LATENCY_BUCKETS, latency_bucket, latency_percentile

_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Counts:
    """Counts that only grow. Every method may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began_at = clock()
        self._asked_at = clock()
        self._counts = dict.fromkeys(("requests", "inputs", "failed", "refused", "rejected", "batches"), 0)
        self._busy_seconds = 0.0
        self._latencies = [0] * LATENCY_BUCKETS

    def asked(self) -> None:
        """Note that a request for outputs arrived."""
        with self._lock:
            self._asked_at = self._clock()

    @property
    def quiet_seconds(self) -> float:
        """Time since the last request for outputs."""
        with self._lock:
            return self._clock() - self._asked_at

    def answered(self, inputs: int, seconds: float, *, failed: bool = False) -> None:
        """Count a request that reached the function and has its answer."""
        with self._lock:
            self._counts["requests"] += 1
            self._counts["inputs"] += inputs
            self._counts["failed"] += failed
            self._latencies[latency_bucket(seconds)] += 1

    def refused(self) -> None:
        """Count a request for which there was no room."""
        with self._lock:
            self._counts["refused"] += 1

    def rejected(self) -> None:
        """Count a request that was wrong."""
        with self._lock:
            self._counts["rejected"] += 1

    def computed(self, seconds: float) -> None:
        """Count a call of the function."""
        with self._lock:
            self._counts["batches"] += 1
            self._busy_seconds += seconds

    def report(self, waiting: int) -> dict[str, Any]:
        """Return all counts, as the worker reports them. `waiting`: requests in the queue."""
        with self._lock:
            return {
                **self._counts,
                "busy_seconds": self._busy_seconds,
                "uptime_seconds": self._clock() - self._began_at,
                "waiting": waiting,
                "latencies": list(self._latencies),
            }

    def summary(self, waiting: int) -> dict[str, Any]:
        """Return the counts with percentiles in place of the histogram."""
        report = self.report(waiting)
        latencies = report.pop("latencies")
        percentiles = {name: latency_percentile(latencies, share) for name, share in _PERCENTILES.items()}
        return {**report, "latency_seconds": percentiles}
