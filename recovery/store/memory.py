"""Memory that a worker writes and the store keeps: files in memory, whose pages the store has taken."""

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
    """What a shard was when it was complete: CRC-32 of each chunk of CHUNK_BYTES, SHA-256 of all of it."""

    chunks: tuple[int, ...]
    sha256: str


class Region:
    """A piece of memory of a fixed size, which is to be taken before anybody writes into it."""

    def __init__(self, size: int) -> None:
        """Raises OSError."""
        self.size = size
        #: Whether all of it is taken.
        self.taken = False
        self.descriptor = os.memfd_create("recovery-point", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            # Whoever has the descriptor can make it neither larger than was accounted, nor smaller under a
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
        """Another descriptor of it, through which nothing can be written. The caller closes it."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Give the memory back, once others who have it let go of it too."""
        os.close(self.descriptor)


def take_memory(descriptor: int, size: int) -> Iterator[int]:
    """Take a region's memory, so that nobody who writes into it later is charged for it, or runs out of it:
    piece by piece, as that takes a second for some gigabytes. Yields how much is taken.

    Raises OSError where there is not as much.
    """
    for place in range(0, size, _TAKEN_AT_ONCE_BYTES):
        os.posix_fallocate(descriptor, place, min(_TAKEN_AT_ONCE_BYTES, size - place))
        yield min(size, place + _TAKEN_AT_ONCE_BYTES)


def checksums(descriptor: int, size: int) -> Checksums:
    """The checksums of the first `size` bytes. Raises OSError."""
    return Checksums(chunk_checksums(descriptor, size), _digest(descriptor, size))


def chunk_checksums(
    descriptor: int, size: int, goes_on: Callable[[], None] = lambda: None
) -> tuple[int, ...]:
    """CRC-32 of each chunk; `goes_on` is called at each. Raises OSError."""
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
