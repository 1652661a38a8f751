"""What a worker may do to its server's disk with states of experts."""

from __future__ import annotations

import threading

from punctual.protocol.limits import DISK_WRITES_EXCEEDED
from workers.runtime.failures import WorkerFailureError


class DiskShare:
    """A worker's share of a disk's room and endurance. Flash wears out with what is written to it.

    Attributes:
        room_bytes: of all files together; None for no limit but the disk's.
        max_written_bytes: that may be written in the life of the worker; None for no limit.
        written_bytes: since the beginning.
    """

    def __init__(self, room_bytes: int | None = None, max_written_bytes: int | None = None) -> None:
        self.room_bytes, self.max_written_bytes = room_bytes, max_written_bytes
        self.written_bytes = 0
        self._lock = threading.Lock()

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
