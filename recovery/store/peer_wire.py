"""The protocol between the stores of two servers, over TCP.

Both sides first prove that they know the secret of the shards' generation (HMAC-SHA256 over fresh nonces, as
in a hand-over). Frames follow: a length, JSON, and an HMAC with the connection's own key over side, number
and content. Chunks of a shard (`shard_stream.py`) carry a CRC-32 each; a frame carries the SHA-256 of all of
them. The traffic is not encrypted.

Requests of the caller, with their answers:

    {"put": rank, "iteration", "bytes", "description_bytes", "capacity", "committed", "world_size",
     "pause_seconds", "buffers"}                     the way of sending, bounded by the receiver
        {"ready": true, "rack": text | null}, then chunks and {"end": sha256}
        {"whole": iteration}
    {"list": rank}
        {"versions": [[iteration, bytes, description_bytes, world_size], ...]}
    {"get": rank, "iteration", "rack": text | null}
        {"sending": bytes, "description_bytes"}, then chunks and {"end": sha256}

Any refused request is answered by {"refused": reason}.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

HELLO_LIMIT_BYTES = 1 << 10
FRAME_LIMIT_BYTES = 1 << 14
#: A peer that is silent for this long in the middle of a message is given up.
SILENT_SECONDS = 3.0
AUTHENTICATION_SECONDS = 5.0
#: Longest time of a frame, a chunk, a mark or a wait for an answer. A whole copy has no limit as long as it
#: makes progress.
STEP_SECONDS = 10.0
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_LENGTH = struct.Struct(">I")
_FRAME_NUMBER = struct.Struct(">Q")
_MARK = b"+"

Message = dict[str, Any]


class PeerError(OSError):
    """The other store does not answer, sends nonsense, or is not authenticated."""


class PeerRefusedError(PeerError):
    """The other store refuses, with a reason."""


@dataclass(frozen=True, order=True)
class Peer:
    """The store of another server."""

    server: str
    address: str
    port: int


@dataclass(frozen=True)
class ShardSize:
    """The sizes of a shard, announced before its content."""

    iteration: int
    bytes: int
    description_bytes: int
    world_size: int


class Channel:
    """A connection between two mutually authenticated stores."""

    def __init__(
        self,
        connection: socket.socket,
        key: bytes,
        own: bytes,
        other: bytes,
        check: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: check: raises when the lease of this server is over, so that nothing is sent or received."""
        self._socket = connection
        self._key = key
        self._own, self._other = own, other
        self._check = check
        self._now = now
        self._sent = self._received = 0
        self._closes_at = float("inf")
        self._pause_seconds = SILENT_SECONDS
        #: Round-trip time of a message.
        self.startup_seconds = 0.0

    def allow(self, seconds: float) -> None:
        """Limit the time of everything that follows."""
        self._closes_at = self._now() + seconds

    def allow_pauses(self, seconds: float) -> None:
        """Allow the other side to be silent for this long between two chunks."""
        self._pause_seconds = max(SILENT_SECONDS, seconds)

    def _ends_at(self, pause_seconds: float = 0.0) -> float:
        """Return the deadline of a step that begins now."""
        return min(self._closes_at, self._now() + STEP_SECONDS + pause_seconds)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises OSError."""
        self._check()
        body = json.dumps(message, separators=(",", ":")).encode()
        seal = self._seal(self._own, self._sent, body)
        self._sent += 1
        send_all(self._socket, _LENGTH.pack(len(body)) + body + seal, self._ends_at(), self._now)

    def receive(self) -> Message:
        """Receive the next message.

        Raises:
            PeerRefusedError: the other side refuses the request.
            PeerError: it is malformed or not authentic. OSError: the connection broke.
        """
        ends_at = self._ends_at()
        head = bytearray(_LENGTH.size)
        _receive_into(self._socket, memoryview(head), ends_at, STEP_SECONDS, self._now)
        (length,) = _LENGTH.unpack(head)
        if length > FRAME_LIMIT_BYTES:
            raise PeerError(f"a frame of {length} bytes")
        body = receive(self._socket, length, ends_at, self._now)
        seal = receive(self._socket, _PROOF_BYTES, ends_at, self._now)
        if not hmac.compare_digest(seal, self._seal(self._other, self._received, body)):
            raise PeerError("a frame was altered on its way")
        self._received += 1
        self._check()
        message = _parse(body)
        if "refused" in message:
            raise PeerRefusedError(str(message["refused"])[:300])
        return message

    def send_bytes(self, content: bytes | memoryview) -> None:
        """Send raw bytes. Raises OSError."""
        self._check()
        send_all(self._socket, content, self._ends_at(), self._now)

    def receive_bytes(self, view: memoryview) -> None:
        """Fill `view` with the next bytes. Raises OSError."""
        self._check()
        _receive_into(self._socket, view, self._ends_at(self._pause_seconds), self._pause_seconds, self._now)

    def mark(self) -> None:
        """Acknowledge that a chunk is in memory. Raises OSError.

        Safe in a thread other than the receiving one: it does not change the socket's timeout."""
        self._check()
        self._socket.sendall(_MARK)

    def take_mark(self) -> None:
        """Wait for the other side's acknowledgement of a chunk. Raises OSError."""
        if receive(self._socket, len(_MARK), self._ends_at(), self._now) != _MARK:
            raise PeerError("it says something else than that a chunk is there")

    def messages(self) -> Iterator[Message]:
        """Yield requests of the other side, until it disconnects or is silent for too long."""
        while True:
            try:
                message = self.receive()
            except OSError:
                return
            yield message

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _seal(self, side: bytes, number: int, body: bytes) -> bytes:
        return _proof(self._key, side, _FRAME_NUMBER.pack(number), body)


def call(peer: Peer, job: str, generation: int, secret: str, check: Callable[[], None]) -> Channel:
    """Connect to another server's store for one generation's shards. Raises OSError."""
    check()
    began = time.monotonic()
    connection = socket.create_connection((peer.address, peer.port), timeout=SILENT_SECONDS)
    startup_seconds = time.monotonic() - began
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ends_at = time.monotonic() + AUTHENTICATION_SECONDS
        hello = json.dumps({"job": job, "generation": generation, "server": peer.server}).encode()
        ours = secrets.token_bytes(_NONCE_BYTES)
        send_all(connection, _LENGTH.pack(len(hello)) + hello + ours, ends_at)
        theirs = receive(connection, _NONCE_BYTES, ends_at)
        proof = receive(connection, _PROOF_BYTES, ends_at)
        key = secret.encode()
        if not hmac.compare_digest(proof, _proof(key, b"holder", hello, ours, theirs)):
            raise PeerError(f"what answers for {peer.server} does not know the secret of this generation")
        send_all(connection, _proof(key, b"owner", hello, ours, theirs), ends_at)
        session = _proof(key, b"session", hello, ours, theirs)
        channel = Channel(connection, session, b"owner", b"holder", check)
        channel.startup_seconds = startup_seconds
        return channel
    except BaseException:
        connection.close()
        raise


def answer(
    connection: socket.socket,
    server: str | None,
    secret_of: Callable[[str, int], str | None],
    check: Callable[[], None],
) -> tuple[Channel, str, int]:
    """Authenticate a caller; return the job and the generation that it may access.

    Args:
        server: this server's name; callers that expect another one are rejected.

    Raises:
        PeerError: it does not know the secret. OSError: it disconnected.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ends_at = time.monotonic() + AUTHENTICATION_SECONDS
    (length,) = _LENGTH.unpack(receive(connection, _LENGTH.size, ends_at))
    if length > HELLO_LIMIT_BYTES:
        raise PeerError(f"a hello of {length} bytes")
    hello = receive(connection, length, ends_at)
    theirs = receive(connection, _NONCE_BYTES, ends_at)
    said = _parse(hello)
    job, generation = said.get("job"), said.get("generation")
    if not isinstance(job, str) or not isinstance(generation, int) or said.get("server") != server:
        raise PeerError("a hello that is for no one here")
    secret = secret_of(job, generation)
    if secret is None:
        raise PeerError(f"generation {generation} of job {job[:40]} is none that this server has to do with")
    key, ours = secret.encode(), secrets.token_bytes(_NONCE_BYTES)
    send_all(connection, ours + _proof(key, b"holder", hello, theirs, ours), ends_at)
    proof = receive(connection, _PROOF_BYTES, ends_at)
    if not hmac.compare_digest(proof, _proof(key, b"owner", hello, theirs, ours)):
        raise PeerError("a caller that does not know the secret of its generation")
    session = _proof(key, b"session", hello, theirs, ours)
    return Channel(connection, session, b"holder", b"owner", check), job, generation


def send_all(
    connection: socket.socket,
    content: bytes | memoryview,
    ends_at: float,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Send all of `content`. Raises TimeoutError if the other side stalls or the deadline passes."""
    view = memoryview(content)
    while view:
        _wait_at_most(connection, ends_at, SILENT_SECONDS, now)
        view = view[connection.send(view) :]


def receive(
    connection: socket.socket, size: int, ends_at: float, now: Callable[[], float] = time.monotonic
) -> bytes:
    """Read `size` bytes. Raises TimeoutError if the other side stalls or the deadline passes."""
    content = bytearray(size)
    _receive_into(connection, memoryview(content), ends_at, SILENT_SECONDS, now)
    return bytes(content)


def _receive_into(
    connection: socket.socket,
    view: memoryview,
    ends_at: float,
    silent_seconds: float,
    now: Callable[[], float],
) -> None:
    while view:
        _wait_at_most(connection, ends_at, silent_seconds, now)
        count = connection.recv_into(view)
        if count == 0:
            raise PeerError("the other store closed the connection")
        view = view[count:]


def _wait_at_most(
    connection: socket.socket, ends_at: float, silent_seconds: float, now: Callable[[], float]
) -> None:
    left = ends_at - now()
    if left <= 0:
        raise TimeoutError("it takes too long")
    connection.settimeout(min(left, silent_seconds))


def _proof(key: bytes, role: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, role + b"".join(parts), hashlib.sha256).digest()


def _parse(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise PeerError(f"no JSON: {error}") from error
    if not isinstance(message, dict):
        raise PeerError("a message is an object")
    return message
