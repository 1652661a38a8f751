"""A worker's client of the store: writes its shards into memory that the store has allocated, and reads those
of earlier generations.

Training never waits for the store. Only `write` copies data, and only into slots that exist.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from emulated_links.sockets import connect
from recovery.store import wire
from recovery.store.allowances import Sending
from recovery.store.wire import Inbox, Message, WireError

logger = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.2
#: Most buffers that the kernel accepts in one call.
_BUFFERS_AT_ONCE = 512
#: Pause after a refusal before room is requested again.
ASK_AGAIN_SECONDS = 5.0


class Standing(Enum):
    """The protection of a version that a worker has written."""

    WAITED_FOR = "waited for"
    #: Complete, with all copies that were ordered on other servers.
    SAFE = "safe"
    #: Incomplete, or with fewer copies, and the store does nothing more about it.
    LACKING = "lacking"


class StoreError(OSError):
    """The store does not answer, or does not have what was requested."""


@dataclass
class _Room:
    """A slot as the worker sees it: memory, its complete iteration, and whether other servers have all
    copies."""

    #: File descriptor of the shared memory.
    descriptor: int
    #: Size in bytes.
    capacity: int
    #: Iteration of its complete version; None without one.
    holds: int | None
    #: Whether the other servers have all copies.
    copied: bool = False


@dataclass(frozen=True)
class Copied:
    """The cost of copying a version to other stores.

    Attributes:
        bytes: to all of them. seconds: spent sending. startup_seconds: of one message. at: monotonic time of
            the report.
    """

    iteration: int
    #: Number of stores that have the copy.
    peers: int
    bytes: int
    seconds: float
    startup_seconds: float
    at: float


class StoredShard:
    """A complete shard in the store's memory, open for reading."""

    def __init__(self, descriptor: int, size: int, description_bytes: int) -> None:
        self._descriptor = descriptor
        self._left = size - description_bytes
        self._place = description_bytes
        self.description = self._read(description_bytes, 0)

    def _read(self, size: int, place: int) -> bytes:
        content = bytearray(size)
        self._fill(memoryview(content), place)
        return bytes(content)

    def _fill(self, view: memoryview, place: int) -> None:
        while view:
            count = os.preadv(self._descriptor, [view], place)
            if count == 0:
                raise StoreError("a shard in memory ends too early")
            view, place = view[count:], place + count

    def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes of the values. Raises OSError."""
        self._left -= len(buffer)
        if self._left < 0:
            raise StoreError("the shard is shorter than its description says")
        self._fill(buffer, self._place)
        self._place += len(buffer)

    def close(self) -> None:
        """Close the memory's descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class StoreClient:
    """The connection of one worker to the store of its node; it is reconnected indefinitely."""

    def __init__(self, box: Path) -> None:
        self._box = box
        self._changed = threading.Condition()
        self._socket: socket.socket | None = None
        self._rooms: list[_Room] = []
        self._asked_at: float | None = None
        self._refused_at: float | None = None
        self._pending: tuple[int, int] | None = None
        self._copied: Copied | None = None
        self._answers: list[tuple[Message, list[int]]] = []
        self._went_on = 0
        threading.Thread(target=self._dial_for_ever, name="memory-store", daemon=True).start()

    # Called by training at every iteration

    def idle(self) -> bool:
        """Whether the store is connected and everything written is complete or given up."""
        with self._changed:
            waits = self._asked_at is not None and self._refused_at is None
            return self._socket is not None and self._pending is None and not waits

    def fits(self, size: int, committed: int | None) -> bool:
        """Whether a slot for `size` bytes exists besides the committed version."""
        with self._changed:
            return self._free(size, committed) is not None

    def holds(self, iteration: int) -> bool:
        """Whether the store has confirmed that it has that version complete."""
        with self._changed:
            return any(room.holds == iteration for room in self._rooms)

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition holds, checking it after each message of the store; return whether it
        does."""
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    def standing(self, iteration: int) -> Standing:
        """Whether the version written last survives the loss of this server."""
        with self._changed:
            if self._pending is not None and self._pending[1] == iteration:
                return Standing.WAITED_FOR
            safe = any(room.holds == iteration and room.copied for room in self._rooms)
            return Standing.SAFE if safe else Standing.LACKING

    def ask_for_room(self, size: int, committed: int | None) -> None:
        """Request slots of that size. The answer comes later; a refusal holds for `ASK_AGAIN_SECONDS`."""
        with self._changed:
            now = time.monotonic()
            if self._socket is None:
                return  # no answer can come
            if self._refused_at is not None and now < self._refused_at + ASK_AGAIN_SECONDS:
                return
            self._asked_at, self._refused_at = now, None
            self._say({"reserve": size, "committed": committed})

    def write(
        self,
        iteration: int,
        buffers: Iterable[memoryview | bytes],
        *,
        size: int,
        description_bytes: int,
        committed: int | None,
        sending: Sending | None = None,
    ) -> bool:
        """Copy a shard into a free slot and submit it; return False if no slot is free.

        Args:
            buffers: description and values, `size` bytes in all; an iterator's buffer is written before the
                next is requested. committed: the version that must not be overwritten.
                sending: how copies go to other stores; None: at once.
        """
        with self._changed:
            place = self._free(size, committed)
            if place is None or self._pending is not None:
                return False
            room = self._rooms[place]
            room.holds = None
            self._say({"begin": place, "iteration": iteration, "committed": committed})
            try:
                _write_all(room.descriptor, buffers)
            except OSError as error:
                logger.warning("the store's memory cannot be written: %s", error)
                return False
            self._pending = (place, iteration)
            how = {} if sending is None else asdict(sending)
            end = {"end": place, "iteration": iteration, "bytes": size}
            self._say({**end, "description_bytes": description_bytes, **how})
            return True

    def allow(self, size: int, within_seconds: float | None, takes_seconds: float = 0.0) -> None:
        """Let copies of the version written last be sent: `size` bytes in `within_seconds`, or without an
        end if None; sending them all takes `takes_seconds`. Callable from any thread."""
        with self._changed:
            self._say({"allow": size, "within": within_seconds, "takes": takes_seconds})

    def copied(self) -> Copied | None:
        """Return the cost of the last complete version's copies; None without copies."""
        with self._changed:
            return self._copied

    # Called at a start

    def find(self, rank: int, generation: int, seconds: float) -> set[int]:
        """Return the iterations of a rank's complete shards here from an earlier generation.

        Raises:
            StoreError: the store neither answers nor reports progress within `seconds`.
        """
        message, _none = self._ask({"find": rank, "generation": generation}, "found", seconds)
        return {int(iteration) for iteration in message["found"]}

    def open(self, rank: int, generation: int, iteration: int, seconds: float) -> StoredShard:
        """Open one of these shards.

        Raises:
            StoreError: it does not exist, or the store neither answers nor reports progress within `seconds`.
        """
        request = {"open": rank, "generation": generation, "iteration": iteration}
        message, (descriptor,) = self._ask(request, "opened", seconds)
        sizes = message["opened"]
        return StoredShard(descriptor, int(sizes["bytes"]), int(sizes["description_bytes"]))

    def _ask(self, request: Message, wanted: str, seconds: float) -> tuple[Message, list[int]]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._socket is not None, seconds):
                raise StoreError("there is no in-memory store")
            asked_of = self._socket
            self._answers.clear()
            self._say(request)

            def has_said_more(than: int) -> bool:
                return bool(self._answers) or self._socket is not asked_of or self._went_on != than

            heard = -1
            while not self._answers and self._socket is asked_of and heard != self._went_on:
                heard = self._went_on
                self._changed.wait_for(partial(has_said_more, heard), seconds)
            if not self._answers:
                raise StoreError("the in-memory store does not answer")
            message, descriptors = self._answers.pop()
        if wanted not in message:
            raise StoreError(str(message.get("refused", "the store answers something else")))
        return message, descriptors

    # The connection

    def _free(self, size: int, committed: int | None) -> int | None:
        for place, room in enumerate(self._rooms):
            if room.capacity >= size and (committed is None or room.holds != committed):
                return place
        return None

    def _say(self, message: Message) -> None:
        """Send a message with the lock held, without blocking. A store that reads nothing is reconnected."""
        if self._socket is None:
            return
        line = wire.to_line(message)
        try:
            if self._socket.send(line, socket.MSG_DONTWAIT) == len(line):
                return
            logger.warning("the in-memory store takes nothing any more")
        except OSError as error:
            logger.info("the in-memory store is gone: %s", error)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it

    def _dial_for_ever(self) -> None:
        while True:
            try:
                connection = connect(self._box, wire.SOCKET_NAME)
            except OSError:
                time.sleep(RECONNECT_SECONDS)
                continue
            inbox = Inbox(descriptors=True)
            with self._changed:
                self._socket = connection
                self._changed.notify_all()
            try:
                while True:
                    for message, descriptors in inbox.read(connection):
                        self._take(message, descriptors)
            except (OSError, WireError) as error:
                logger.info("the in-memory store is gone: %s", error)
            inbox.close()
            self._forget(connection)
            time.sleep(RECONNECT_SECONDS)

    def _forget(self, connection: socket.socket) -> None:
        """Reset all state: the next store may be another process, which holds nothing."""
        with self._changed:
            self._socket = None
            self._close_rooms()
            self._asked_at = self._refused_at = self._pending = None
            self._changed.notify_all()
        connection.close()

    def _take(self, message: Message, descriptors: list[int]) -> None:
        with self._changed:
            if "slots" in message:
                self._close_rooms()
                self._rooms = [
                    _Room(descriptor, int(size), held)
                    for descriptor, size, held in zip(
                        descriptors, message["slots"], message["holds"], strict=True
                    )
                ]
                self._asked_at = None
            elif "complete" in message:
                if self._pending is not None and self._pending[1] == message["complete"]:
                    room = self._rooms[self._pending[0]]
                    room.holds = self._pending[1]
                    room.copied = int(message.get("copies", 1)) >= max(
                        2, int(message.get("wanted_copies", 2))
                    )
                self._pending = None
                self._copied = _read_copied(message)
            elif "goes_on" in message:
                self._went_on += 1
            elif "refused" in message and message.get("what") in ("reserve", "begin", "end"):
                self._note_refusal(message)
            else:
                self._answers.append((message, descriptors))
            self._changed.notify_all()

    def _note_refusal(self, message: Message) -> None:
        logger.warning("no recovery point in memory: %s", message["refused"])
        self._refused_at = time.monotonic()
        if message["what"] != "reserve":
            self._pending = None
            self._close_rooms()

    def _close_rooms(self) -> None:
        for room in self._rooms:
            os.close(room.descriptor)
        self._rooms = []


def _write_all(descriptor: int, buffers: Iterable[memoryview | bytes]) -> None:
    place = 0
    for together in [buffers] if isinstance(buffers, Sequence) else ([buffer] for buffer in buffers):
        place = _write_at(descriptor, together, place)


def _write_at(descriptor: int, buffers: Sequence[memoryview | bytes], place: int) -> int:
    """Write at `place`; return the position after it."""
    waiting = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    while waiting:
        count = os.pwritev(descriptor, waiting[:_BUFFERS_AT_ONCE], place)
        place += count
        while waiting and count >= len(waiting[0]):
            count -= len(waiting.pop(0))
        if count:
            waiting[0] = waiting[0][count:]
    return place


def _read_copied(message: Message) -> Copied | None:
    found = message.get("copied")
    if found is None:
        return None
    return Copied(
        int(message["complete"]),
        int(found["peers"]),
        int(found["bytes"]),
        float(found["seconds"]),
        float(found["startup_seconds"]),
        time.monotonic(),
    )
