"""When a store may send: a worker that knows when the network is idle lets its store send so many bytes
within so many seconds. What it does not know of is sent at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

#: The most sub-buffers that a receiver has for one copy, and the bytes of one.
SUB_BUFFERS = 4
SUB_BUFFER_BYTES = 1 << 20
#: A copy does not wait longer for the next allowance: whoever gives them stands still.
LONGEST_PAUSE_SECONDS = 60.0
#: Nor does its plan spread a copy over more than this.
LONGEST_COPY_SECONDS = 600.0
#: Less than this is not worth a piece of its own, unless it is all that there is.
_LEAST_BYTES = 4 << 10
_WITHOUT_END = float("inf")


@dataclass(frozen=True)
class Sending:
    """How one version is to be sent, as its worker wishes; all is bounded.

    Attributes:
        pause_seconds: it waits so long for each allowance, then it goes on without; 0: it needs none.
        seconds: after these the rest goes without allowances. buffers: sub-buffers that the receiver uses.
    """

    pause_seconds: float = 0.0
    seconds: float = 0.0
    buffers: int = SUB_BUFFERS

    @classmethod
    def bounded(cls, pause_seconds: float, seconds: float, buffers: int) -> Sending:
        """The same within what a store lets a worker wish for."""
        return cls(
            min(max(0.0, pause_seconds), LONGEST_PAUSE_SECONDS),
            min(max(0.0, seconds), LONGEST_COPY_SECONDS),
            min(max(1, buffers), SUB_BUFFERS),
        )


@dataclass
class Span:
    """An idle time of the network until `ends`, and the bytes that may be sent in it, some of which are
    left."""

    bytes: int
    left: int
    takes_seconds: float
    ends: float

    def usable(self, now: float) -> int:
        """What may still be sent: no more than what ends in time, where all takes `takes_seconds`."""
        if now >= self.ends:
            return 0
        if self.ends == _WITHOUT_END or self.takes_seconds <= 0.0:
            return self.left
        return min(self.left, int(self.bytes * (self.ends - now) / self.takes_seconds))


class Allowance:
    """What one rank's copies may send now. Threads share it: those that send take from it."""

    def __init__(self, sending: Sending, now: Callable[[], float] = time.monotonic) -> None:
        self._sending = sending
        self._now = now
        self._changed = threading.Condition()
        self._span: Span | None = None
        self._open = sending.pause_seconds <= 0.0
        #: When all may be sent, whatever was allowed: since the first of it was to be.
        self._opens_at: float | None = None

    def allow(self, size: int, within_seconds: float | None, takes_seconds: float = 0.0) -> None:
        """From now on so many bytes, within so many seconds; what was allowed before is over.

        Args:
            within_seconds: None: there is no end to it. takes_seconds: to send all of them; 0: not known.
        """
        ends = _WITHOUT_END if within_seconds is None else self._now() + within_seconds
        with self._changed:
            self._span = Span(size, size, takes_seconds, ends)
            self._changed.notify_all()

    def lift(self) -> None:
        """All may be sent: whoever gave allowances is gone."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def take(self, most: int) -> int:
        """Wait until something may be sent; how many bytes, `most` at most."""
        began = self._now()
        with self._changed:
            if self._opens_at is None:
                self._opens_at = began + self._sending.seconds
            gives_up_at = began + self._sending.pause_seconds
            while not self._open:
                now = self._now()
                if now >= self._opens_at:
                    self._open = True
                    break
                size = 0 if self._span is None else min(most, self._span.usable(now))
                if self._span is not None and size >= min(most, _LEAST_BYTES):
                    self._span.left -= size
                    return size
                if now >= gives_up_at:
                    self._open = True
                    break
                self._changed.wait(min(gives_up_at, self._opens_at) - now)
            return most
