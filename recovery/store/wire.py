"""What the store, its agent and its workers say to each other: lines of JSON over Unix sockets, with
descriptors beside some of them.

From a worker, with the answer to it:

    {"reserve": bytes, "committed": iteration | null}
        {"slots": [bytes, bytes], "holds": [iteration | null, the same]} and a descriptor of each slot
    {"begin": slot, "iteration", "committed"}             the slot's content is void from now on
    {"end": slot, "iteration", "bytes", "description_bytes", "pause_seconds", "seconds", "buffers"}
        {"complete": iteration, "copies", "wanted_copies", "copied": {"peers", "bytes", "seconds",
         "startup_seconds"}}                              `copied` where other stores have it too
    {"allow": bytes, "within": seconds | null, "takes": seconds}
                                                          copies may be sent, in an idle time of the network
    {"find": rank, "generation"}
        {"found": [iterations], "rank"}
    {"open": rank, "generation", "iteration"}
        {"opened": {"bytes", "description_bytes"}, "rank"} and a descriptor to read from

Before an answer to `find` and `open` that takes its time {"goes_on": true} is said again and again. Whatever
is not done is answered by {"refused": reason, "what"}. From the agent, as often as it likes:

    {"state": {"lease", "jobs": [...] | null, "serve": [{"key", "box", "user_id", "job", "generation", "rank",
               "world_size", "limit_bytes"}],
               "links": null | {"rates", "rack"},
               "peers": null | {"server", "address", "port" | null, "groups": [{"job", "generation", "secret",
                                "send": [{"rank", "peers": [{"server", "address", "port"}]}], "keep": [ranks],
                                "fetch": [{"rank", "peers"}]}]}}}
        {"holdings": [...], "used_bytes", "limit_bytes", "protection", "problem"}
    {"quit": true}
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: In the box of each worker that the store serves.
SOCKET_NAME = "store.sock"
#: The agent's, in the store's folder. Its name changes with what is said over it.
CONTROL_NAME = "control-2.sock"
LINE_LIMIT_BYTES = 1 << 16
#: What an agent says of all its workers, and hears of all that is held.
CONTROL_LIMIT_BYTES = 8 << 20
_READ_BYTES = 1 << 16
_MOST_DESCRIPTORS = 8

Message = dict[str, Any]


class WireError(Exception):
    """The other side says what makes no sense."""


def boot_seconds() -> float:
    """The clock by which leases end: it runs on while the machine sleeps, and nobody sets it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def to_line(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def send(connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message, with descriptors that the other side gets copies of. Raises OSError."""
    line = to_line({**message, "descriptors": len(descriptors)} if descriptors else message)
    sent = socket.send_fds(connection, [line], list(descriptors))
    if sent < len(line):
        connection.sendall(line[sent:])


class Inbox:
    """Messages that come over one connection, with their descriptors."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES, *, descriptors: bool = False) -> None:
        """`descriptors`: whether the other side is trusted to send any; those of others are closed unseen."""
        self._limit_bytes = limit_bytes
        self._takes_descriptors = descriptors
        self._received = bytearray()
        self._descriptors: deque[int] = deque()

    def read(self, connection: socket.socket) -> Iterator[tuple[Message, list[int]]]:
        """The messages that the next bytes complete.

        Raises:
            WireError: they are none.
            OSError: the connection is gone; BlockingIOError where nothing waits.
        """
        if self._takes_descriptors:
            part, descriptors, _flags, _address = socket.recv_fds(connection, _READ_BYTES, _MOST_DESCRIPTORS)
            self._descriptors.extend(descriptors)
        else:
            # Without room for them the kernel hands over none.
            part = connection.recv(_READ_BYTES)
        if not part:
            raise ConnectionResetError("the other side closed the connection")
        self._received += part
        *lines, rest = bytes(self._received).split(b"\n")
        self._received = bytearray(rest)
        if len(rest) > self._limit_bytes or any(len(line) > self._limit_bytes for line in lines):
            raise WireError(f"a line of more than {self._limit_bytes} bytes")
        for line in lines:
            message = _parse(line)
            count = message.pop("descriptors", 0)
            if count and not (self._takes_descriptors and 0 < count <= len(self._descriptors)):
                raise WireError("descriptors are missing")
            yield message, [self._descriptors.popleft() for _ in range(count)]

    def close(self) -> None:
        """Let go of descriptors that nobody has taken."""
        while self._descriptors:
            os.close(self._descriptors.popleft())


def _parse(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("a message is an object")
    return message


def number(message: Mapping[str, Any], name: str, most: int = 1 << 62) -> int:
    """A whole number of at least 0 in a message.

    Raises:
        WireError: there is none.
    """
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise WireError(f"{name} must be a whole number from 0 to {most}")
    return value


def optional_number(message: Mapping[str, Any], name: str) -> int | None:
    """The same, or null."""
    return None if message.get(name) is None else number(message, name)


def amount(message: Mapping[str, Any], name: str) -> float:
    """A number of at least 0 in a message; 0 where it is not there.

    Raises:
        WireError: it is something else.
    """
    value = message.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise WireError(f"{name} must be a number of at least 0")
    return float(value)
