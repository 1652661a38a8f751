"""The protocol between the store, its agent and its workers: lines of JSON over Unix sockets, some with
descriptors.

Requests of a worker, with their answers:

    {"reserve": bytes, "committed": iteration | null}
        {"slots": [bytes, bytes], "holds": [iteration | null, the same]} and a descriptor of each slot
    {"begin": slot, "iteration", "committed"}             the slot's content is void from now on
    {"end": slot, "iteration", "bytes", "description_bytes", "pause_seconds", "seconds", "buffers"}
        {"complete": iteration, "copies", "wanted_copies", "copied": {"peers", "bytes", "seconds",
         "startup_seconds"}}                              `copied` if other stores have it too
    {"allow": bytes, "within": seconds | null, "takes": seconds}
                                                          copies may be sent, in an idle time of the network
    {"find": rank, "generation"}
        {"found": [iterations], "rank"}
    {"open": rank, "generation", "iteration"}
        {"opened": {"bytes", "description_bytes"}, "rank"} and a descriptor to read from

While an answer to `find` or `open` takes time, {"goes_on": true} is sent repeatedly. Any refused request is
answered by {"refused": reason, "what"}. Requests of the agent, at any time:

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
#: The agent's socket, in the store's folder. Its name changes with the protocol.
CONTROL_NAME = "control-2.sock"
LINE_LIMIT_BYTES = 1 << 16
#: Limit of the agent's state of all workers, and of the store's report.
CONTROL_LIMIT_BYTES = 8 << 20
_READ_BYTES = 1 << 16
_MOST_DESCRIPTORS = 8

Message = dict[str, Any]


class WireError(Exception):
    """The other side sent a malformed message."""


def boot_seconds() -> float:
    """Return the clock of leases: it advances while the machine sleeps and is never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def to_line(message: Mapping[str, Any]) -> bytes:
    """Encode a message."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def send(connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message with descriptors, of which the other side receives copies. Raises OSError."""
    line = to_line({**message, "descriptors": len(descriptors)} if descriptors else message)
    sent = socket.send_fds(connection, [line], list(descriptors))
    if sent < len(line):
        connection.sendall(line[sent:])


class Inbox:
    """Messages received over one connection, with their descriptors."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES, *, descriptors: bool = False) -> None:
        """Args: descriptors: whether descriptors are accepted from the other side; else they are dropped."""
        self._limit_bytes = limit_bytes
        self._takes_descriptors = descriptors
        self._received = bytearray()
        self._descriptors: deque[int] = deque()

    def read(self, connection: socket.socket) -> Iterator[tuple[Message, list[int]]]:
        """Yield the messages that the next bytes complete.

        Raises:
            WireError: they are malformed.
            OSError: the connection is closed; BlockingIOError if no data is available.
        """
        if self._takes_descriptors:
            part, descriptors, _flags, _address = socket.recv_fds(connection, _READ_BYTES, _MOST_DESCRIPTORS)
            self._descriptors.extend(descriptors)
        else:
            # Without a receive buffer for descriptors the kernel drops them.
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
        """Close the descriptors that were not consumed."""
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
    """Return an integer of at least 0 from a message.

    Raises:
        WireError: it is missing or out of range.
    """
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise WireError(f"{name} must be a whole number from 0 to {most}")
    return value


def optional_number(message: Mapping[str, Any], name: str) -> int | None:
    """Return an integer of at least 0 from a message, or None for null."""
    return None if message.get(name) is None else number(message, name)


def amount(message: Mapping[str, Any], name: str) -> float:
    """Return a number of at least 0 from a message; 0 if it is missing.

    Raises:
        WireError: it is something else.
    """
    value = message.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise WireError(f"{name} must be a number of at least 0")
    return float(value)
