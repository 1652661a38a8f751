"""Limits on a worker's use of its server's disk for states of experts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from punctual.protocol.limits import DISK_WRITES_EXCEEDED
from workers.runtime.failures import WorkerFailureError


class DiskShare:
    """A worker's share of a disk's room, bandwidth and endurance (flash wears out with writes).

    The shares of a server's workers add up to its disk, so jobs on one server never use more together.

    Attributes:
        room_bytes: limit for all files together; None: only the disk's.
        max_written_bytes: limit for bytes written in the worker's life; None: no limit.
        bytes_per_second: limit for reads and writes together; None: only the disk's.
        written_bytes: bytes written so far.
    """

    def __init__(
        self,
        room_bytes: int | None = None,
        max_written_bytes: int | None = None,
        bytes_per_second: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.room_bytes, self.max_written_bytes = room_bytes, max_written_bytes
        self.bytes_per_second = bytes_per_second
        self.written_bytes = 0
        self._clock, self._sleep = clock, sleep
        self._free_at = clock()
        self._lock = threading.Lock()

    @contextmanager
    def moving(self, size_bytes: int) -> Iterator[None]:
        """Throttle a read or write in this context, which ends no earlier than the share allows."""
        began = self._clock()
        yield
        if self.bytes_per_second is None:
            return
        with self._lock:
            self._free_at = max(self._free_at, began) + size_bytes / self.bytes_per_second
            end = self._free_at
        self._sleep(max(0.0, end - self._clock()))

    def write(self, size_bytes: int) -> None:
        """Count bytes that are about to be written.

        Raises:
            WorkerFailureError: they exceed the limit.
        """
        with self._lock:
            written = self.written_bytes + size_bytes
            if self.max_written_bytes is not None and written > self.max_written_bytes:
                raise WorkerFailureError(
                    DISK_WRITES_EXCEEDED,
                    f"states of experts have written {self.written_bytes} bytes to disk; a worker may write "
                    f"{self.max_written_bytes} on this server (worker_disk_writes_bytes of its agent). Leave "
                    'out tiers="auto", or ask your operator for more',
                )
            self.written_bytes = written
