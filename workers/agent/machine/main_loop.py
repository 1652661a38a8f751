"""One thread that owns the agent's state; all others post work to it."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections.abc import Callable

from workers.agent.machine import clock

Work = Callable[[], None]


class MainLoop:
    """Runs posted work in order, in the thread that calls `run_for`."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Work]] = []
        self._numbers = itertools.count()
        self._guard = threading.Lock()

    def post(self, work: Work) -> None:
        """Run `work` soon. May be called from any thread and from signal handlers."""
        self._inbox.put(work)

    def post_later(self, seconds: float, work: Work) -> None:
        """Run `work` after `seconds`. May be called from any thread."""
        with self._guard:
            heapq.heappush(self._timers, (clock.boot_time_seconds() + seconds, next(self._numbers), work))
        self.post(lambda: None)

    def run_for(self, seconds: float) -> None:
        """Wait at most `seconds` for work, and run what is due."""
        due = self._next_timer_seconds()
        try:
            work = self._inbox.get(timeout=max(0.0, min(seconds, due)))
        except queue.Empty:
            pass
        else:
            work()
        # Bounded, so that leases and reports get their turn while workers send without pause.
        for _ in range(min(1000, self._inbox.qsize())):
            self._inbox.get()()
        for work in self._due():
            work()

    def _next_timer_seconds(self) -> float:
        with self._guard:
            return self._timers[0][0] - clock.boot_time_seconds() if self._timers else float("inf")

    def _due(self) -> list[Work]:
        now = clock.boot_time_seconds()
        due = []
        with self._guard:
            while self._timers and self._timers[0][0] <= now:
                due.append(heapq.heappop(self._timers)[2])
        return due
