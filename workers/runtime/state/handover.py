"""Hands a shard of the state from a rank of the old generation to one of the new over TCP, through memory.

The successor connects early and waits, so the pause includes no round trip to the control plane. Before any
state is sent, both sides prove that they know the job's secret (HMAC-SHA256 over fresh nonces and both
generation numbers). The shard is authenticated with the same key. A stale or foreign worker gets nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import secrets
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from workers.runtime.process_group import listen_on
from workers.runtime.state.moves import PLACE_BYTES, StateMoves
from workers.runtime.state.shards import (
    LARGEST_DESCRIPTION_BYTES,
    Shard,
    ShardError,
    describe_as_bytes,
    read_description,
)

_log = logging.getLogger(__name__)

_NONCE_BYTES = 32
_PROOF_BYTES = 32
#: Numbers of bytes of the description and of the values after it.
_HEADER = struct.Struct("<QQ")
_GENERATION = struct.Struct("<q")
_AUTHENTICATION_SECONDS = 5.0
_CONNECT_SECONDS = 2.0
_RETRY_SECONDS = 0.05
_PATIENCE_SECONDS = 0.25
#: Maximum numbers of authenticated successors that wait for the state, and of unauthenticated callers.
_MOST_WAITING = 8
_MOST_KNOCKING = 32
_PIECE_BYTES = 4 << 20


class HandoverRefusedError(ConnectionError):
    """The other side does not know the job's secret, or one of the two generations is stale."""


def _proof(secret: str, role: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret.encode(), role + b"".join(parts), hashlib.sha256).digest()


class HandoverServer:
    """Offers a rank's shard of generation `generation`'s state to any later generation of the same job."""

    def __init__(self, address: str, port: int, secret: str, generation: int, moves: StateMoves) -> None:
        """Listen at once. Raise OSError if the port is taken."""
        self._secret = secret
        self._generation = generation
        self._moves = moves
        self._shard: Shard | None = None
        self._description = b""
        self._published = threading.Event()
        self._taken = threading.Event()
        self._moved_at = 0.0
        self._seats = threading.Semaphore(_MOST_WAITING)
        self._knocking: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        self._listener = listen_on(address, port)
        threading.Thread(target=self._accept, name="handover", daemon=True).start()

    @property
    def port(self) -> int:
        """The port on which this server listens."""
        return int(self._listener.getsockname()[1])

    def publish(self, shard: Shard) -> None:
        """Serve `shard` to all waiting and later successors; its memory must not change any more."""
        self._description = describe_as_bytes(shard)
        self._shard = shard
        self._moved_at = time.monotonic()
        self._published.set()

    def wait_until_taken(self, idle_seconds: float) -> bool:
        """Wait until a successor has the whole shard; return False after `idle_seconds` without sending."""
        while not self._taken.wait(max(0.0, self._moved_at + idle_seconds - time.monotonic())):
            if time.monotonic() >= self._moved_at + idle_seconds:
                return False
        return True

    def _accept(self) -> None:
        while True:
            connection, peer = self._listener.accept()
            with self._lock:
                while len(self._knocking) >= _MOST_KNOCKING:
                    # Drop the oldest: a real successor authenticates within milliseconds.
                    with contextlib.suppress(OSError):
                        self._knocking.popleft().shutdown(socket.SHUT_RDWR)
                self._knocking.append(connection)
            threading.Thread(
                target=self._serve, args=(connection, peer), name="handover-peer", daemon=True
            ).start()

    def _serve(self, connection: socket.socket, peer: object) -> None:
        try:
            with connection:
                with self._until_proved(connection):
                    seal, receiver = self._authenticate(connection)
                if not self._seats.acquire(blocking=False):
                    return
                try:
                    self._published.wait()
                    connection.settimeout(None)
                    self._send(connection, seal, receiver)
                finally:
                    self._seats.release()
        except OSError as error:
            _log.warning("handover to %s: %s", peer, error)

    @contextlib.contextmanager
    def _until_proved(self, connection: socket.socket) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._knocking.remove(connection)

    def _send(self, connection: socket.socket, seal: bytes, receiver: bytes) -> None:
        shard = self._shard
        assert shard is not None
        digest = hashlib.sha256(self._description)
        connection.sendall(_HEADER.pack(len(self._description), shard.bytes))
        connection.sendall(self._description)
        begun = time.monotonic()
        for piece in shard.pieces():
            for start in range(0, len(piece), _PIECE_BYTES):
                part = piece[start : start + _PIECE_BYTES]
                connection.sendall(part)
                # Hash while the other side reads.
                digest.update(part)
                begun = self._moves.sent(len(part), begun, receiver)
                self._moved_at = time.monotonic()
        connection.sendall(_proof(self._secret, b"state", seal, digest.digest()))
        self._taken.set()

    def _authenticate(self, connection: socket.socket) -> tuple[bytes, bytes]:
        """Authenticate the successor; return the transcript of both sides, and the successor's place."""
        ends_at = time.monotonic() + _AUTHENTICATION_SECONDS
        ours = secrets.token_bytes(_NONCE_BYTES)
        connection.settimeout(_AUTHENTICATION_SECONDS)
        connection.sendall(ours + _GENERATION.pack(self._generation) + self._moves.place)
        theirs = receive_by(connection, _NONCE_BYTES, ends_at)
        successor = receive_by(connection, _GENERATION.size, ends_at)
        place = receive_by(connection, PLACE_BYTES, ends_at)
        proof = receive_by(connection, _PROOF_BYTES, ends_at)
        own = (ours, _GENERATION.pack(self._generation), self._moves.place)
        transcript = (*own, theirs, successor, place)
        if not hmac.compare_digest(proof, _proof(self._secret, b"successor", *transcript)):
            raise HandoverRefusedError("a worker without the job's secret asked for the state")
        if _GENERATION.unpack(successor)[0] <= self._generation:
            raise HandoverRefusedError("a stale generation asked for the state")
        connection.sendall(_proof(self._secret, b"predecessor", *transcript))
        return b"".join(transcript), place


class ReceivedShard:
    """A shard that is received over an open connection."""

    def __init__(
        self,
        connection: socket.socket,
        secret: str,
        transcript: bytes,
        header: bytes,
        still_wanted: Callable[[], bool],
        arrived: Callable[[int, float], object],
    ) -> None:
        """Read the description. Raise OSError or ShardError if that fails."""
        self._connection = connection
        self._still_wanted = still_wanted
        self._arrived = arrived
        self._secret = secret
        self._transcript = transcript
        length, self._left = _HEADER.unpack(header)
        if length > LARGEST_DESCRIPTION_BYTES:
            raise ShardError(f"a shard's description of {length} bytes")
        description = receive_exactly(connection, length, still_wanted)
        self._digest = hashlib.sha256(description)
        self.description: Mapping[str, Any] = read_description(description)

    def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes. Raises OSError."""
        self._left -= len(buffer)
        if self._left < 0:
            raise ConnectionError("the shard is shorter than its description says")
        begun = time.monotonic()
        _fill(self._connection, buffer, self._still_wanted)
        self._digest.update(buffer)
        self._arrived(len(buffer), begun)

    def finish(self) -> None:
        """Verify the shard after its last byte, and close the connection.

        Raises:
            HandoverRefusedError: bytes are left, or the shard was altered in transit.
        """
        seal = _proof(self._secret, b"state", self._transcript, self._digest.digest())
        proof = receive_exactly(self._connection, _PROOF_BYTES, self._still_wanted)
        if self._left or not hmac.compare_digest(proof, seal):
            raise HandoverRefusedError("the state was altered on its way")
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def open_handover(
    address: str,
    port: int,
    *,
    secret: str,
    predecessor: int,
    generation: int,
    still_wanted: Callable[[], bool],
    pause: Callable[[float], None],
    moves: StateMoves,
) -> ReceivedShard | None:
    """Connect to a rank of the old generation and wait for its shard; None if it is no longer wanted.

    Args:
        predecessor: the generation that must answer.
        still_wanted: called at least every quarter of a second; False, after a new order, ends the wait.
        pause: waits between attempts to connect.
        moves: the links over which this worker's state moves.
    """
    while still_wanted():
        try:
            connection = socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
            try:
                opened = _open(connection, secret, predecessor, generation, still_wanted, moves)
            except BaseException:
                connection.close()
                raise
            if opened is None:
                connection.close()
            return opened
        except OSError as error:
            # Not listening yet, disconnected, or a foreign port: the control plane ends a hopeless wait.
            if not isinstance(error, ConnectionRefusedError):
                _log.warning("handover from %s:%s: %s", address, port, error)
        pause(_RETRY_SECONDS)
    return None


def _open(
    connection: socket.socket,
    secret: str,
    predecessor: int,
    generation: int,
    wanted: Callable[[], bool],
    moves: StateMoves,
) -> ReceivedShard | None:
    ends_at = time.monotonic() + _AUTHENTICATION_SECONDS
    theirs = receive_by(connection, _NONCE_BYTES, ends_at)
    claimed = receive_by(connection, _GENERATION.size, ends_at)
    place = receive_by(connection, PLACE_BYTES, ends_at)
    if _GENERATION.unpack(claimed)[0] != predecessor:
        raise HandoverRefusedError(f"generation {_GENERATION.unpack(claimed)[0]} answered, not {predecessor}")
    ours = secrets.token_bytes(_NONCE_BYTES)
    own = (ours, _GENERATION.pack(generation), moves.place)
    transcript = (theirs, claimed, place, *own)
    connection.sendall(b"".join(own) + _proof(secret, b"successor", *transcript))
    if not hmac.compare_digest(
        receive_by(connection, _PROOF_BYTES, ends_at), _proof(secret, b"predecessor", *transcript)
    ):
        raise HandoverRefusedError("the old generation does not know the job's secret")
    header = _wait_for_header(connection, wanted)
    if header is None:
        return None
    return ReceivedShard(
        connection,
        secret,
        b"".join(transcript),
        header,
        wanted,
        lambda size, begun: moves.received(size, begun, place),
    )


def _wait_for_header(connection: socket.socket, wanted: Callable[[], bool]) -> bytes | None:
    """Return the shard's header; the old generation may first have to finish a long iteration."""
    header = b""
    connection.settimeout(_PATIENCE_SECONDS)
    while len(header) < _HEADER.size:
        try:
            received = connection.recv(_HEADER.size - len(header))
        except TimeoutError:
            if not wanted():
                return None
            continue
        if not received:
            raise ConnectionError("the old generation went away before its state came")
        header += received
    return header


def receive_by(connection: socket.socket, size: int, ends_at: float) -> bytes:
    """Read `size` bytes, all before monotonic time `ends_at`, however many packets they take.

    Raises:
        ConnectionError: the other side closed the connection before.
        TimeoutError: it was too slow.
    """
    content = bytearray()
    while len(content) < size:
        left = ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the other side takes too long")
        connection.settimeout(left)
        part = connection.recv(size - len(content))
        if not part:
            raise ConnectionError("the other side closed the connection")
        content += part
    return bytes(content)


def receive_exactly(
    connection: socket.socket, size: int, wanted: Callable[[], bool] = lambda: False
) -> bytes:
    """Read `size` bytes. The socket's time-out ends the wait only if the bytes are no longer `wanted`.

    Raises:
        ConnectionError: the other side closed the connection before.
        TimeoutError: it was silent, and the bytes are no longer wanted.
    """
    content = bytearray(size)
    _fill(connection, memoryview(content), wanted)
    return bytes(content)


def _fill(connection: socket.socket, view: memoryview, wanted: Callable[[], bool]) -> None:
    received = 0
    while received < len(view):
        try:
            count = connection.recv_into(view[received:])
        except TimeoutError:
            # A server without power closes no connection; the control plane's next order ends this wait.
            if not wanted():
                raise
            continue
        if count == 0:
            raise ConnectionError("the other side closed the connection")
        received += count
