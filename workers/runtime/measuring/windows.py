"""Periodic reports on a plan's performance: windows of iterations, as measured by rank 0."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from communication.hooks.measures import CommunicationMeasures
from punctual.protocol import limits
from workers.runtime.measuring.gradient_times import ITERATIONS_KEPT, GradientTimes
from workers.runtime.measuring.records import window_fields

#: Not measured: memory is allocated and connections are set up.
WARM_UP_ITERATIONS = 3
#: The first window comes soon, the others seldom, as each is kept until it is acknowledged.
FIRST_WINDOW_ITERATIONS = 20
WINDOW_ITERATIONS = 50
WINDOW_SECONDS = 30.0


class CommunicationWindows:
    """Measures windows of iterations and reports each at its end."""

    def __init__(
        self,
        measured: Callable[[], CommunicationMeasures | None],
        times: GradientTimes,
        plan: str,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        """Begin to measure.

        Args:
            measured: returns the measurements since its last call.
            times: times of the iterations.
            plan: digest of the runtime plan.
            tell: takes the fields of a window.
        """
        self._measured, self._times, self._plan, self._tell = measured, times, plan, tell
        self._iterations = 0
        self._told_at: float | None = None
        self._warm = False
        times.watching = True

    def iteration_done(self, iteration: int) -> None:
        """Count an iteration; report a window if it ends.

        Args:
            iteration: number of iterations that are done.
        """
        self._iterations += 1
        if not self._warm:
            if self._iterations == WARM_UP_ITERATIONS:
                self._warm = True
                self._begin()
            return
        now = time.monotonic()
        first = self._told_at is None
        if self._iterations < (FIRST_WINDOW_ITERATIONS if first else WINDOW_ITERATIONS):
            return
        if self._told_at is not None and now - self._told_at < WINDOW_SECONDS:
            # Only ITERATIONS_KEPT iterations are kept: begin the window again.
            if self._iterations >= ITERATIONS_KEPT:
                self._begin()
            return
        self._told_at = now
        measured = self._measured()
        if measured is not None:
            fields = window_fields(
                self._plan, iteration, self._times.iterations, _fields(measured, self._times)
            )
            if fields is not None:
                self._tell(fields)
        self._begin(ask=False)

    def _begin(self, *, ask: bool = True) -> None:
        self._iterations = 0
        self._times.iterations.clear()
        if ask:
            self._measured()


def _fields(measured: CommunicationMeasures, times: GradientTimes) -> dict[str, Any]:
    begun = times.backward_began
    spans = [
        {
            "stage": each.stage,
            "resource": each.resource,
            "group": each.group,
            "begin_seconds": round(max(0.0, each.begun - begun), 6),
            "end_seconds": round(max(0.0, each.ended - begun), 6),
        }
        for each in sorted(measured.spans, key=lambda span: span.begun)
    ]
    last = times.iterations[-1].ready[-1][1] if times.iterations and times.iterations[-1].ready else 0.0
    backward = {"stage": "backward", "resource": "gpu", "group": 0, "begin_seconds": 0.0}
    backward["end_seconds"] = round(last, 6)
    return {
        **{f"{stage}_seconds": seconds for stage, seconds in measured.seconds.items()},
        "received_bytes": measured.received_bytes,
        "dense_bytes": measured.dense_bytes,
        "push_imbalance": max(1.0, measured.push_imbalance),
        "pull_imbalance": max(1.0, measured.pull_imbalance),
        "residual_norm": measured.residual_norm,
        "densities": dict(list(measured.densities.items())[: limits.SPARSE_TENSORS_OF_A_MODEL]),
        "spans": [backward, *spans][: limits.SPANS_OF_A_WINDOW],
    }
