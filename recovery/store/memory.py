"""Memory that a worker writes and the store keeps: in-memory files whose pages the store has allocated."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

CHUNK_BYTES = 4 << 20
_TAKEN_AT_ONCE_BYTES = 256 << 20


@dataclass(frozen=True)
class Checksums:
    """Checksums of a complete shard: CRC-32 of each chunk of CHUNK_BYTES, SHA-256 of the whole."""

    #: CRC-32 of each chunk of `CHUNK_BYTES`.
    chunks: tuple[int, ...]
    #: Of the whole shard, in hexadecimal.
    sha256: str


class Region:
    """A piece of memory of a fixed size, to be allocated before it is written."""

    def __init__(self, size: int) -> None:
        """Raises OSError."""
        self.size = size
        #: Whether all of its pages are allocated.
        self.taken = False
        self.descriptor = os.memfd_create("recovery-point", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            # No holder of the descriptor can grow it beyond what was accounted for, or shrink it under a
            # reader.
            fcntl.fcntl(
                self.descriptor,
                fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL,
            )
        except OSError:
            os.close(self.descriptor)
            raise

    def open_to_read(self) -> int:
        """Return another descriptor of it, read-only. The caller closes it."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Release the memory, once all other holders of it have closed it too."""
        os.close(self.descriptor)


def take_memory(descriptor: int, size: int) -> Iterator[int]:
    """Allocate a region's memory, so that later writers are neither charged for it nor run out of it.

    Works piece by piece, because some gigabytes take a second. Yields the bytes allocated so far. Raises
    OSError without enough memory.
    """
    for place in range(0, size, _TAKEN_AT_ONCE_BYTES):
        os.posix_fallocate(descriptor, place, min(_TAKEN_AT_ONCE_BYTES, size - place))
        yield min(size, place + _TAKEN_AT_ONCE_BYTES)


def checksums(descriptor: int, size: int) -> Checksums:
    """Return the checksums of the first `size` bytes. Raises OSError."""
    return Checksums(chunk_checksums(descriptor, size), _digest(descriptor, size))


def chunk_checksums(
    descriptor: int, size: int, goes_on: Callable[[], None] = lambda: None
) -> tuple[int, ...]:
    """Return the CRC-32 of each chunk; `goes_on` is called after each. Raises OSError."""
    found = []
    if size:
        with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
            for start in range(0, size, CHUNK_BYTES):
                found.append(zlib.crc32(view[start : start + CHUNK_BYTES]))
                goes_on()
    return tuple(found)


def _digest(descriptor: int, size: int) -> str:
    digest = hashlib.sha256()
    if size:
        with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
            digest.update(view)
    return digest.hexdigest()
