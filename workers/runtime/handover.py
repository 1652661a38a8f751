"""Hands the training state from the old generation's rank 0 to the new one's over TCP, through memory.

The successor connects early and waits, so the pause holds no round trip of the control plane. Both sides
prove that they know the job's secret (HMAC-SHA256 over fresh nonces and both generation numbers) before a
byte of state moves, and the state itself is sealed with the same key: a stale or foreign worker gets nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import socket
import struct
import threading
from collections.abc import Callable

from workers.runtime.process_group import listen_on

_log = logging.getLogger(__name__)

_NONCE_BYTES = 32
_PROOF_BYTES = 32
_HEADER = struct.Struct("<Q")
_GENERATION = struct.Struct("<q")
_AUTHENTICATION_SECONDS = 5.0
_CONNECT_SECONDS = 2.0
_RETRY_SECONDS = 0.05
_PATIENCE_SECONDS = 0.25
_MOST_WAITING = 8


class HandoverRefusedError(ConnectionError):
    """The other side does not know the job's secret, or one of the two is stale."""


def _proof(secret: str, role: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret.encode(), role + b"".join(parts), hashlib.sha256).digest()


class HandoverServer:
    """Offers the state of generation `generation` to any later generation of the same job."""

    def __init__(self, address: str, port: int, secret: str, generation: int) -> None:
        """Listen at once; raises OSError when the port is taken."""
        self._secret = secret
        self._generation = generation
        self._state: memoryview | None = None
        self._published = threading.Event()
        self._seats = threading.Semaphore(_MOST_WAITING)
        self._listener = listen_on(address, port)
        threading.Thread(target=self._accept, name="handover", daemon=True).start()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._listener.getsockname()[1])

    def publish(self, payload: bytes) -> None:
        """Serve `payload` to everyone who waits or comes later."""
        self._state = memoryview(payload)
        self._published.set()

    def _accept(self) -> None:
        while True:
            connection, peer = self._listener.accept()
            if not self._seats.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(connection, peer), name="handover-peer", daemon=True
            ).start()

    def _serve(self, connection: socket.socket, peer: object) -> None:
        try:
            with connection:
                connection.settimeout(_AUTHENTICATION_SECONDS)
                seal = self._authenticate(connection)
                self._published.wait()
                assert self._state is not None
                connection.settimeout(None)
                connection.sendall(_HEADER.pack(len(self._state)))
                connection.sendall(self._state)
                connection.sendall(_proof(self._secret, b"state", seal, bytes(self._state_digest())))
        except OSError as error:
            _log.warning("handover to %s: %s", peer, error)
        finally:
            self._seats.release()

    def _state_digest(self) -> bytes:
        assert self._state is not None
        return hashlib.sha256(self._state).digest()

    def _authenticate(self, connection: socket.socket) -> bytes:
        ours = secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(ours + _GENERATION.pack(self._generation))
        theirs = receive_exactly(connection, _NONCE_BYTES)
        successor = receive_exactly(connection, _GENERATION.size)
        transcript = (ours, _GENERATION.pack(self._generation), theirs, successor)
        if not hmac.compare_digest(
            receive_exactly(connection, _PROOF_BYTES), _proof(self._secret, b"successor", *transcript)
        ):
            raise HandoverRefusedError("a worker without the job's secret asked for the state")
        if _GENERATION.unpack(successor)[0] <= self._generation:
            raise HandoverRefusedError("a stale generation asked for the state")
        connection.sendall(_proof(self._secret, b"predecessor", *transcript))
        return b"".join(transcript)


def receive_state(
    address: str,
    port: int,
    *,
    secret: str,
    predecessor: int,
    generation: int,
    still_wanted: Callable[[], bool],
    pause: Callable[[float], None],
) -> bytes | None:
    """Connect to the old generation and wait for its state; None when it is not wanted any more.

    Args:
        predecessor: the generation that is expected to answer. still_wanted: asked at least every quarter of
            a second; a new order for where to start from ends the wait. pause: waits between attempts to
            connect.
    """
    while still_wanted():
        try:
            with socket.create_connection((address, port), timeout=_CONNECT_SECONDS) as connection:
                return _receive(connection, secret, predecessor, generation, still_wanted)
        except OSError as error:
            # Not listening yet, broken off, or someone else's port: the control plane ends a hopeless wait.
            if not isinstance(error, ConnectionRefusedError):
                _log.warning("handover from %s:%s: %s", address, port, error)
        pause(_RETRY_SECONDS)
    return None


def _receive(
    connection: socket.socket, secret: str, predecessor: int, generation: int, wanted: Callable[[], bool]
) -> bytes | None:
    connection.settimeout(_AUTHENTICATION_SECONDS)
    theirs = receive_exactly(connection, _NONCE_BYTES)
    claimed = receive_exactly(connection, _GENERATION.size)
    if _GENERATION.unpack(claimed)[0] != predecessor:
        raise HandoverRefusedError(f"generation {_GENERATION.unpack(claimed)[0]} answered, not {predecessor}")
    ours = secrets.token_bytes(_NONCE_BYTES)
    transcript = (theirs, claimed, ours, _GENERATION.pack(generation))
    connection.sendall(ours + _GENERATION.pack(generation) + _proof(secret, b"successor", *transcript))
    if not hmac.compare_digest(
        receive_exactly(connection, _PROOF_BYTES), _proof(secret, b"predecessor", *transcript)
    ):
        raise HandoverRefusedError("the old generation does not know the job's secret")
    header = _wait_for_header(connection, wanted)
    if header is None:
        return None
    connection.settimeout(None)
    payload = receive_exactly(connection, _HEADER.unpack(header)[0])
    seal = _proof(secret, b"state", b"".join(transcript), hashlib.sha256(payload).digest())
    if not hmac.compare_digest(receive_exactly(connection, _PROOF_BYTES), seal):
        raise HandoverRefusedError("the state was altered on its way")
    return payload


def _wait_for_header(connection: socket.socket, wanted: Callable[[], bool]) -> bytes | None:
    """The state's length, for which the old generation may have to finish a long iteration."""
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


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Read `size` bytes.

    Raises:
        ConnectionError: the other side closed before.
    """
    content = bytearray(size)
    view = memoryview(content)
    received = 0
    while received < size:
        count = connection.recv_into(view[received:])
        if count == 0:
            raise ConnectionError("the other side closed the connection")
        received += count
    return bytes(content)
