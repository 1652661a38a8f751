"""States of experts in files, one for each expert.

A file has a header with a checksum, and rows of FP32 numbers: the parameters, then each moment of the
optimizer. A file is written beside the old one and renamed over it, so a reader finds a complete state.
The files belong to one generation of one worker. They are not synchronised to disk: after a crash of the
machine, training continues from a recovery point.
"""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moe.moesys.cache import Key
from workers.runtime.failures import WorkerFailureError
from workers.runtime.tiers.disk_share import DiskShare

Numbers = NDArray[Any]
_HEADER = struct.Struct("<8sIQI")
_MAGIC = b"experts2"
#: Not counted in bytes read and written.
HEADER_BYTES = 64


class ExpertFiles:
    """The files of experts of one shape.

    A file that cannot be written or read raises a WorkerFailureError with the reason `storage_failed`. The
    worker ends with it, and the job continues from its last recovery point.

    Attributes:
        rows, elements: a state is (rows, elements) FP32 numbers.
        max_bytes: limit of all files together; None for no limit.
        bytes_read, bytes_written: of states, since the beginning.
    """

    def __init__(
        self,
        folder: Path,
        rows: int,
        elements: int,
        max_bytes: int | None = None,
        disk: DiskShare | None = None,
    ) -> None:
        """Begin with an empty folder. `disk` counts and limits the bytes written."""
        self.folder, self.rows, self.elements, self.max_bytes = folder, rows, elements, max_bytes
        self._disk = disk or DiskShare()
        self.bytes_read = self.bytes_written = 0
        self._keys: set[Key] = set()
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as error:
            raise _storage_failed(f"the folder of experts' states cannot be made: {error}") from error

    @property
    def state_bytes(self) -> int:
        """Bytes of one state."""
        return 4 * self.rows * self.elements

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of all files."""
        return len(self._keys) * (HEADER_BYTES + self.state_bytes)

    def path(self, key: Key) -> Path:
        """Return the file of an expert."""
        layer, expert = key
        return self.folder / f"layer-{layer}-expert-{expert}.state"

    def read(self, key: Key, into: Tensor) -> None:
        """Fill a tensor of (rows, elements) FP32 numbers on the host.

        Raises:
            WorkerFailureError: the file is lost or damaged.
        """
        numbers = self._numbers(into)
        try:
            with self._disk.moving(self.state_bytes), self.path(key).open("rb", buffering=0) as file:
                header = file.read(HEADER_BYTES)
                target = memoryview(numbers.data).cast("B")
                filled = 0
                while filled < len(target) and (count := file.readinto(target[filled:])):
                    filled += count
        except OSError as error:
            raise _storage_failed(f"the state of expert {key} cannot be read: {error}") from error
        if filled < len(target) or header != self._header(numbers):
            raise _storage_failed(f"the state of expert {key} is damaged: {self.path(key).name}")
        self.bytes_read += self.state_bytes

    def write(self, key: Key, values: Tensor) -> None:
        """Replace a state. If that fails, the file has the state before.

        Raises:
            WorkerFailureError: the disk is full or refuses, the files would exceed their limit, or the worker
                has written as much as it may (`disk_writes_exceeded`).
        """
        numbers = self._numbers(values)
        size = self.bytes_on_disk + (0 if key in self._keys else HEADER_BYTES + self.state_bytes)
        if self.max_bytes is not None and size > self.max_bytes:
            raise _storage_failed(
                f"experts' states take {size} bytes of disk; the worker may take {self.max_bytes}"
            )
        self._disk.write(self.state_bytes)
        part = self.path(key).with_suffix(".part")
        try:
            with self._disk.moving(self.state_bytes), part.open("wb", buffering=0) as file:
                for left in (memoryview(self._header(numbers)), memoryview(numbers.data).cast("B")):
                    while left:
                        left = left[file.write(left) or 0 :]
            os.replace(part, self.path(key))
        except OSError as error:
            part.unlink(missing_ok=True)
            raise _storage_failed(f"the state of expert {key} cannot be written: {error}") from error
        self._keys.add(key)
        self.bytes_written += self.state_bytes

    def map(self, key: Key) -> Tensor:
        """Return a memory-mapped state that later writes do not change.

        Raises:
            WorkerFailureError: the file is lost or damaged.
        """
        try:
            mapped = np.memmap(
                self.path(key), np.float32, mode="c", offset=HEADER_BYTES, shape=(self.rows, self.elements)
            )
            with self.path(key).open("rb") as file:
                header = file.read(HEADER_BYTES)
        except (OSError, ValueError) as error:
            raise _storage_failed(f"the state of expert {key} cannot be read: {error}") from error
        if header != self._header(mapped):
            raise _storage_failed(f"the state of expert {key} is damaged: {self.path(key).name}")
        return torch.from_numpy(mapped)

    def remove(self) -> None:
        """Delete all files."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._keys.clear()

    def _numbers(self, values: Tensor) -> Numbers:
        shape = (self.rows, self.elements)
        if tuple(values.shape) != shape or values.dtype != torch.float32 or not values.is_contiguous():
            raise ValueError(f"a state must be {shape} contiguous FP32, not {tuple(values.shape)}")
        numbers: Numbers = values.detach().numpy()
        return numbers

    def _header(self, numbers: Numbers) -> bytes:
        checksum = zlib.crc32(memoryview(numbers.data).cast("B"))
        return _HEADER.pack(_MAGIC, self.rows, self.elements, checksum).ljust(HEADER_BYTES, b"\0")


def _storage_failed(problem: str) -> WorkerFailureError:
    return WorkerFailureError("storage_failed", problem)
