"""Transfer of a shard between stores, in chunks through a few sub-buffers of the receiver.

A chunk is a length, a CRC-32 and its bytes. The receiver acknowledges each with one byte once it is in
memory, which frees the sub-buffer. At most as many chunks are in flight as there are sub-buffers, so network
and copy overlap, and a receiver's memory is bounded.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from recovery.store.allowances import SUB_BUFFER_BYTES, SUB_BUFFERS
from recovery.store.links import Way
from recovery.store.memory import CHUNK_BYTES
from recovery.store.peer_wire import Channel, PeerError

_CHUNK = struct.Struct(">II")
_CHUNKS_OF_A_SHARD = 16
_LEAST_CHUNK_BYTES = 64 << 10

#: Waits until something may be sent. Receives the bytes left, returns the bytes that may be sent.
Take = Callable[[int], int]


def all_at_once(left: int) -> int:
    """Allow all bytes, for a shard that waits for no idle time."""
    return left


def send_shard(
    channel: Channel,
    view: memoryview,
    sha256: str,
    way: Way,
    take: Take = all_at_once,
    buffers: int = SUB_BUFFERS,
) -> float:
    """Send the chunks of a shard and its digest; return the seconds spent sending, without waits for an
    allowance. Raises OSError."""
    place, on_their_way, seconds = 0, 0, 0.0
    # A small shard is sent in several chunks too, so that the copy of one overlaps with the next.
    largest = min(SUB_BUFFER_BYTES, way.piece_bytes, max(_LEAST_CHUNK_BYTES, len(view) // _CHUNKS_OF_A_SHARD))
    while place < len(view):
        began = time.monotonic()
        if on_their_way == buffers:
            channel.take_mark()
            on_their_way -= 1
        seconds += time.monotonic() - began
        # No chunk crosses a boundary between checksummed chunks.
        border = CHUNK_BYTES - place % CHUNK_BYTES
        size = take(min(largest, border, len(view) - place))
        began = time.monotonic()
        chunk = view[place : place + size]
        channel.send_bytes(_CHUNK.pack(size, zlib.crc32(chunk)))
        channel.send_bytes(chunk)
        way.carry(size, began)
        seconds += time.monotonic() - began
        on_their_way += 1
        place += size
    began = time.monotonic()
    while on_their_way:
        channel.take_mark()
        on_their_way -= 1
    way.arrive()
    channel.send({"end": sha256})
    return seconds + time.monotonic() - began


def receive_shard(
    channel: Channel,
    size: int,
    descriptor: int,
    way: Way,
    into_memory: Way,
    buffers: int = SUB_BUFFERS,
    goes_on: Callable[[], None] = lambda: None,
) -> tuple[tuple[int, ...], str]:
    """Write the chunks of a shard into memory; return the checksum of each CHUNK_BYTES, and the digest.

    `goes_on` is called after each chunk.

    Raises:
        PeerError: a chunk does not match its checksum, or the shard its digest. OSError.
    """
    assembly = _Assembly(channel, descriptor, into_memory)
    room = deque(memoryview(bytearray(min(size, SUB_BUFFER_BYTES))) for _ in range(buffers if size else 0))
    copies: deque[tuple[Future[None], memoryview]] = deque()
    place = 0
    with ThreadPoolExecutor(1, thread_name_prefix="sub-buffers") as copier:
        while place < size:
            if not room:
                copied, free = copies.popleft()
                copied.result()
                room.append(free)
            head = bytearray(_CHUNK.size)
            channel.receive_bytes(memoryview(head))
            length, checksum = _CHUNK.unpack(head)
            if not 0 < length <= min(SUB_BUFFER_BYTES, size - place):
                raise PeerError(f"a chunk of {length} bytes at {place} of {size}")
            began = time.monotonic()
            buffer = room.popleft()
            channel.receive_bytes(buffer[:length])
            way.carry(length, began)
            copies.append((copier.submit(assembly.add, buffer[:length], checksum), buffer))
            place += length
            goes_on()
        for copied, _buffer in copies:
            copied.result()
    if channel.receive().get("end") != assembly.digest.hexdigest():
        raise PeerError("the shard is not what it was when it was complete")
    return tuple(assembly.checksums), assembly.digest.hexdigest()


class _Assembly:
    """The part of a shard received so far."""

    def __init__(self, channel: Channel, descriptor: int, into_memory: Way) -> None:
        self.digest = hashlib.sha256()
        self.checksums: list[int] = []
        self._channel = channel
        self._descriptor = descriptor
        self._into_memory = into_memory
        self._place = 0

    def add(self, chunk: memoryview, checksum: int) -> None:
        """Copy a chunk into memory, which frees its sub-buffer."""
        began = time.monotonic()
        if zlib.crc32(chunk) != checksum:
            raise PeerError(f"the chunk at {self._place} was altered on its way")
        self.digest.update(chunk)
        left, place = chunk, self._place
        while left:
            count = os.pwrite(self._descriptor, left, place)
            left, place = left[count:], place + count
        self._sum(chunk)
        self._place = place
        self._into_memory.carry(len(chunk), began)
        self._channel.mark()

    def _sum(self, chunk: memoryview) -> None:
        place = self._place
        while chunk:
            if place % CHUNK_BYTES == 0:
                self.checksums.append(0)
            part = chunk[: CHUNK_BYTES - place % CHUNK_BYTES]
            self.checksums[-1] = zlib.crc32(part, self.checksums[-1])
            chunk, place = chunk[len(part) :], place + len(part)
