"""Gathers requests into batches: which are computed together, when, and which are refused or late.

All methods run in the event loop's thread. Clock and timers are the loop's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from workers.serving.errors import LateError, NotServingError, QueueFullError
from workers.serving.limits import ServingLimits

#: The body of an answer, or why there is none.
Outcome = bytes | Exception


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> object:
        """Cancel the call."""


class Timers(Protocol):
    """The timers of an event loop."""

    def time(self) -> float:
        """Return monotonic seconds."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` once after `delay` seconds."""


class Request:
    """Inputs of one HTTP request. `settle` is called once, with the first outcome."""

    def __init__(self, inputs: Sequence[Any], came_at: float, settle: Callable[[Outcome], None]) -> None:
        self.inputs = inputs
        self.came_at = came_at
        self.is_settled = False
        self._settle = settle

    def settle(self, outcome: Outcome) -> None:
        """Set the outcome, unless it is already set."""
        if not self.is_settled:
            self.is_settled = True
            self._settle(outcome)


class Batcher:
    """A bounded queue whose requests are computed batch by batch.

    A batch consists of whole requests in the order of arrival: as many as fit, and at least one.
    """

    def __init__(self, begin: Callable[[list[Request]], None], limits: ServingLimits, timers: Timers) -> None:
        """Begin with an empty queue.

        Args:
            begin: starts the computation of a batch and returns; :meth:`ended` is called at its end.
        """
        self._begin = begin
        self._limits = limits
        self._timers = timers
        self._queue: deque[Request] = deque()
        self._computing: list[Request] = []
        self._is_closed = False
        self._timer: Timer | None = None
        self._waiting_inputs = 0

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is computed."""
        return not self._queue and not self._computing

    def submit(self, request: Request) -> None:
        """Put a request into the queue. Raise QueueFullError or NotServingError if it is refused."""
        if self._is_closed:
            raise NotServingError("this worker ends")
        # A single request may be larger than the queue.
        if self._queue and self._waiting_inputs + len(request.inputs) > self._limits.most_waiting:
            raise QueueFullError(
                f"{self._waiting_inputs} inputs wait; the limit is {self._limits.most_waiting}"
            )
        self._queue.append(request)
        self._waiting_inputs += len(request.inputs)
        self._look()

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """Settle the computed batch, and begin the next one."""
        for request, outcome in zip(self._computing, outcomes, strict=True):
            request.settle(outcome)
        self._computing = []
        self._look()

    def expire(self) -> None:
        """Settle requests that were not answered in time. Their computation continues."""
        latest = self._timers.time() - self._limits.answer_seconds
        late = LateError(f"there was no answer within {self._limits.answer_seconds:g} s")
        for request in self._computing:
            if request.came_at <= latest:
                request.settle(late)
        while self._queue and self._queue[0].came_at <= latest:
            request = self._queue.popleft()
            self._waiting_inputs -= len(request.inputs)
            request.settle(late)

    def close(self) -> None:
        """Accept no more requests; compute the waiting ones at once."""
        self._is_closed = True
        self._look()

    def give_up(self, computing: Exception) -> None:
        """Settle all requests: those being computed with this error, waiting ones with NotServingError."""
        self._is_closed = True
        for request in self._computing:
            request.settle(computing)
        for request in self._queue:
            request.settle(NotServingError("this worker ends before it came to the request"))
        self._queue.clear()
        self._waiting_inputs = 0

    def _look(self) -> None:
        """Begin a batch if one is due, or set a timer for the time when it is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._computing or not self._queue:
            return
        ends_at = self._queue[0].came_at + self._limits.longest_wait_seconds
        left_seconds = ends_at - self._timers.time()
        if self._is_closed or self._waiting_inputs >= self._limits.most_inputs or left_seconds <= 0.0:
            self._computing = self._next_batch()
            self._begin(self._computing)
        else:
            self._timer = self._timers.call_later(left_seconds, self._look)

    def _next_batch(self) -> list[Request]:
        batch = [self._queue.popleft()]
        inputs = len(batch[0].inputs)
        while self._queue and inputs + len(self._queue[0].inputs) <= self._limits.most_inputs:
            batch.append(self._queue.popleft())
            inputs += len(batch[-1].inputs)
        self._waiting_inputs -= inputs
        return batch
