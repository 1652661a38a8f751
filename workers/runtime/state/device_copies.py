"""Copies of values from an accelerator to the host, in chunks through a few sub-buffers (Gemini 6.3).

The accelerator's copy engine copies chunks into pinned memory, on a separate stream. While the reader uses
one sub-buffer, the next ones fill, so that copying from the device and writing to the store overlap. A shard
of any size needs only the sub-buffers on the host.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

#: Number of sub-buffers on the host and bytes of each. The paper has 128 MB in four.
HOST_SUB_BUFFERS = 4
HOST_SUB_BUFFER_BYTES = 32 << 20

#: Part of a sub-buffer, and the values' bytes that are copied there.
Transfer = tuple[Tensor, Tensor]
#: Begins the transfers of one sub-buffer; returns a function that waits until they are done.
Begin = Callable[[Sequence[Transfer]], Callable[[], None]]


class DeviceCopies:
    """The sub-buffers from one device to the host, for one reader at a time."""

    def __init__(self, begin: Begin, allocate: Callable[[int], Tensor], *, count: int, size: int) -> None:
        """Set the sub-buffers up; they are allocated at first use.

        Args:
            begin: begins the transfers of one sub-buffer.
            allocate: returns a sub-buffer of the given number of bytes.
            count: number of sub-buffers.
            size: bytes of each.
        """
        self._begin = begin
        self._allocate = allocate
        self._count = count
        self._size = size
        self._buffers: list[Tensor] = []
        self._in_use = threading.Lock()

    def chunks(self, values: Iterable[Tensor]) -> Generator[memoryview, None, None]:
        """Yield the bytes of flat values in order. A chunk is valid until the next one is requested.

        Raises:
            RuntimeError: another reader has not finished.
        """
        if not self._in_use.acquire(blocking=False):
            raise RuntimeError("the sub-buffers of this device have a reader already")
        on_their_way: deque[tuple[Tensor, Callable[[], None], list[Transfer]]] = deque()
        try:
            free = deque(self._sub_buffers())
            for sources in _filling(values, self._size):
                if not free:
                    buffer, wait, transfers = on_their_way.popleft()
                    wait()
                    yield _bytes_of(buffer, transfers)
                    free.append(buffer)
                buffer = free.popleft()
                transfers = _into(buffer, sources)
                on_their_way.append((buffer, self._begin(transfers), transfers))
            while on_their_way:
                buffer, wait, transfers = on_their_way.popleft()
                wait()
                yield _bytes_of(buffer, transfers)
        finally:
            # If the reader stopped early, the device may still write into the sub-buffers.
            for _buffer, wait, _transfers in on_their_way:
                wait()
            self._in_use.release()

    def _sub_buffers(self) -> list[Tensor]:
        if not self._buffers:
            self._buffers = [self._allocate(self._size) for _ in range(self._count)]
        return self._buffers


def _filling(values: Iterable[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Yield the values' bytes in groups that each fill a sub-buffer; the last one may be smaller."""
    group: list[Tensor] = []
    room = size
    for value in values:
        left = value.detach().view(-1).view(torch.uint8)
        while left.numel():
            piece, left = left[:room], left[room:]
            group.append(piece)
            room -= piece.numel()
            if room == 0:
                yield group
                group, room = [], size
    if group:
        yield group


def _into(buffer: Tensor, sources: Sequence[Tensor]) -> list[Transfer]:
    place, transfers = 0, []
    for source in sources:
        transfers.append((buffer[place : place + source.numel()], source))
        place += source.numel()
    return transfers


def _bytes_of(buffer: Tensor, transfers: Sequence[Transfer]) -> memoryview:
    return memoryview(buffer[: sum(source.numel() for _target, source in transfers)].numpy())


@cache
def copies_from(device: torch.device) -> DeviceCopies:
    """Return the copies from a GPU to this process's memory."""
    stream = torch.cuda.Stream(device)

    def begin(transfers: Sequence[Transfer]) -> Callable[[], None]:
        # Copy the results of everything queued so far.
        stream.wait_stream(torch.cuda.current_stream(device))
        done = torch.cuda.Event()
        with torch.cuda.stream(stream):
            for target, source in transfers:
                target.copy_(source, non_blocking=True)
            done.record(stream)
        return done.synchronize

    def allocate(size: int) -> Tensor:
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            # Slower but correct: without pinned memory the device waits for each copy.
            _log.warning("no memory can be pinned: %s", error)
            return torch.empty(size, dtype=torch.uint8)

    return DeviceCopies(begin, allocate, count=HOST_SUB_BUFFERS, size=HOST_SUB_BUFFER_BYTES)
