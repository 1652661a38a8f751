"""Allowances for sending copies: a worker, which measures when the network is idle, lets its store send a
number of bytes within a number of seconds. Without a worker's allowances, copies are sent at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Most sub-buffers of a receiver for one copy, and the bytes of each.
SUB_BUFFERS = 4
SUB_BUFFER_BYTES = 1 << 20
#: Longest wait of a copy for the next allowance, in case the worker stalls.
LONGEST_PAUSE_SECONDS = 60.0
#: Longest time over which a plan may spread a copy.
LONGEST_COPY_SECONDS = 600.0
#: Smaller pieces are not sent, unless nothing more is left.
_LEAST_BYTES = 4 << 10
_WITHOUT_END = float("inf")


@dataclass(frozen=True)
class Sending:
    """A worker's instructions for sending a version; all values are bounded.

    Attributes:
        pause_seconds: longest wait for each allowance, after which the rest is sent without; 0 for none.
        seconds: after these the rest is sent without allowances. buffers: sub-buffers of the receiver.
    """

    pause_seconds: float = 0.0
    seconds: float = 0.0
    buffers: int = SUB_BUFFERS

    @classmethod
    def bounded(cls, pause_seconds: float, seconds: float, buffers: int) -> Sending:
        """Return a Sending within the store's limits."""
        return cls(
            min(max(0.0, pause_seconds), LONGEST_PAUSE_SECONDS),
            min(max(0.0, seconds), LONGEST_COPY_SECONDS),
            min(max(1, buffers), SUB_BUFFERS),
        )


@dataclass
class Span:
    """An idle time of the network until `ends`: the bytes that may be sent in it, and those left.

    `takes_seconds`: time to send all `bytes`; 0 if unknown.
    """

    bytes: int
    #: Bytes that may still be sent.
    left: int
    takes_seconds: float
    ends: float

    def usable(self, now: float) -> int:
        """Return the bytes that may still be sent and arrive before `ends`."""
        if now >= self.ends:
            return 0
        if self.ends == _WITHOUT_END or self.takes_seconds <= 0.0:
            return self.left
        return min(self.left, int(self.bytes * (self.ends - now) / self.takes_seconds))


class Allowance:
    """The bytes that one rank's copies may send now, shared by all threads that send them."""

    def __init__(self, sending: Sending, now: Callable[[], float] = time.monotonic) -> None:
        self._sending = sending
        self._now = now
        self._changed = threading.Condition()
        self._span: Span | None = None
        self._open = sending.pause_seconds <= 0.0
        #: When everything may be sent regardless of allowances, counted from the first request to send.
        self._opens_at: float | None = None

    def allow(self, size: int, within_seconds: float | None, takes_seconds: float = 0.0) -> None:
        """Replace the previous allowance: `size` bytes within `within_seconds`.

        Args:
            within_seconds: None for no end. takes_seconds: to send all of them; 0 if unknown.
        """
        ends = _WITHOUT_END if within_seconds is None else self._now() + within_seconds
        with self._changed:
            self._span = Span(size, size, takes_seconds, ends)
            self._changed.notify_all()

    def lift(self) -> None:
        """Allow everything to be sent, because the worker is gone."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def take(self, most: int) -> int:
        """Wait until something may be sent; return how many bytes, at most `most`."""
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
