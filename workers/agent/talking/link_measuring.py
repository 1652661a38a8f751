"""Measurement of the network between two servers: the protocol between their agents.

One calls, the other answers. Both prove that they know the secret of this measurement, and use the frames of
`recovery/store/peer_wire.py`. The caller's requests:

    {"pings": n}                      then a byte is returned for each byte
    {"take": seconds, "piece": bytes}     {"ready": true}; pieces follow, and the answer is {"link_seconds"}
    {"give": seconds, "piece": bytes}     pieces are sent, then {"link_seconds"}
    {"done": false}                   ends this connection; true: also ends the measurement

A piece is zeros; the first byte of the last one is 1. `link_seconds`: how long the answering server's
emulated links were busy; 0 without any.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from emulated_links.client import LinkClient, wait_until
from emulated_links.rates import STATE
from recovery.store.peer_wire import Channel, PeerError

PINGS = 16
MOST_PINGS = 64
#: Duration of a burst in one direction, and its largest size over one connection.
BURST_SECONDS = 0.4
LONGEST_BURST_SECONDS = 2.0
MOST_BYTES = 1 << 29
#: One connection does not saturate a fast network. Emulated links use one only.
CONNECTIONS = 4
PIECE_BYTES = 256 << 10
LARGEST_PIECE_BYTES = 1 << 20
LEAST_PIECE_BYTES = 16 << 10
#: An emulated link carries one piece in this time.
PIECE_SECONDS = 0.02
#: Time limit of one connection.
CONNECTION_SECONDS = 20.0
#: A measurement is discarded if the machine was slower than its emulated links by more than this share.
MOST_OVERRUN = 0.05
_LAST = 1


class Pace:
    """The emulated links of one direction of a connection; without any, nothing waits."""

    def __init__(self, client: LinkClient | None, path: tuple[str, ...]) -> None:
        self._client = client
        self._path = path
        self._began = self._ended = 0.0
        self.emulated = client is not None
        self.piece_bytes = PIECE_BYTES
        if client is not None:
            rate = min(client.links.rate(link).bytes_per_second for link in path)
            self.piece_bytes = min(PIECE_BYTES, max(LEAST_PIECE_BYTES, int(rate * PIECE_SECONDS)))

    def begin(self) -> None:
        """Start a sequence of consecutive pieces."""
        self._began = self._ended = time.monotonic()

    def carry(self, size: int) -> None:
        """Wait until the links have carried `size` more bytes."""
        if self._client is not None:
            self._ended = self._client.transfer(self._path, STATE, size, self._ended)
            wait_until(self._ended)

    def arrive(self) -> None:
        """Wait for the links' latency of one message."""
        if self._client is not None:
            wait_until(time.monotonic() + self._client.links.latency_seconds(self._path))

    @property
    def link_seconds(self) -> float:
        """How long the links were busy since the beginning."""
        return self._ended - self._began


@dataclass(frozen=True)
class Paces:
    """Creates the paces of a connection: for data to the other server, and for data from it."""

    out: Callable[[], Pace]
    into: Callable[[], Pace]


@dataclass(frozen=True)
class LinkFigures:
    """The result: one-way latency, and the rate of the slower direction. ``overrun``: share of the time in
    which the emulated links had finished and the machine had not."""

    latency_seconds: float
    bytes_per_second: float
    overrun: float


@dataclass(frozen=True)
class _Burst:
    #: Bytes.
    size: int
    #: Monotonic time.
    began: float
    #: Monotonic time.
    ended: float
    link_seconds: float


def measure(call: Callable[[], Channel], paces: Paces) -> LinkFigures:
    """Measure the link to the server that `call` connects to. Raises OSError."""
    with call() as channel:
        channel.allow(CONNECTION_SECONDS)
        latency_seconds = _ping(channel, paces.out())
        count = 1 if paces.out().emulated else CONNECTIONS
        with ThreadPoolExecutor(count, thread_name_prefix="link") as threads:
            found = [
                _together([threads.submit(send, call, paces).result for _ in range(count)], latency_seconds)
                for send in (_send_burst, _fetch_burst)
            ]
        channel.send({"done": True})
    rates, overruns = zip(*found, strict=True)
    return LinkFigures(latency_seconds, min(rates), max(overruns))


def answer(channel: Channel, paces: Paces) -> bool:
    """Answer the caller's requests; return whether it is done with the measurement. Raises OSError."""
    channel.allow(CONNECTION_SECONDS)
    while True:
        asked = channel.receive()
        if "done" in asked:
            return asked["done"] is True
        if "pings" in asked:
            _answer_pings(channel, paces.out(), int(_within(asked, "pings", 1, MOST_PINGS)))
            continue
        piece = int(_within(asked, "piece", 1, LARGEST_PIECE_BYTES))
        if "take" in asked:
            _within(asked, "take", 0, LONGEST_BURST_SECONDS)
            pace = paces.into()
            channel.send({"ready": True})
            _receive_pieces(channel, pace, piece)
        else:
            pace = paces.out()
            _send_pieces(channel, pace, piece, _within(asked, "give", 0, LONGEST_BURST_SECONDS))
        channel.send({"link_seconds": pace.link_seconds})


def _ping(channel: Channel, pace: Pace) -> float:
    channel.send({"pings": PINGS})
    back = memoryview(bytearray(1))
    best = float("inf")
    for _ in range(PINGS):
        began = time.monotonic()
        pace.arrive()
        channel.send_bytes(b"p")
        channel.receive_bytes(back)
        best = min(best, time.monotonic() - began)
    return best / 2


def _answer_pings(channel: Channel, pace: Pace, count: int) -> None:
    content = memoryview(bytearray(1))
    for _ in range(count):
        channel.receive_bytes(content)
        pace.arrive()
        channel.send_bytes(content)


def _send_burst(call: Callable[[], Channel], paces: Paces) -> _Burst:
    with call() as channel:
        channel.allow(CONNECTION_SECONDS)
        pace = paces.out()
        channel.send({"take": BURST_SECONDS, "piece": pace.piece_bytes})
        if channel.receive().get("ready") is not True:
            raise PeerError("it does not say that it is ready")
        began = time.monotonic()
        size = _send_pieces(channel, pace, pace.piece_bytes, BURST_SECONDS)
        return _ended(channel, pace, size, began)


def _fetch_burst(call: Callable[[], Channel], paces: Paces) -> _Burst:
    with call() as channel:
        channel.allow(CONNECTION_SECONDS)
        pace = paces.into()
        began = time.monotonic()
        channel.send({"give": BURST_SECONDS, "piece": pace.piece_bytes})
        size = _receive_pieces(channel, pace, pace.piece_bytes)
        return _ended(channel, pace, size, began)


def _ended(channel: Channel, pace: Pace, size: int, began: float) -> _Burst:
    there = _within(channel.receive(), "link_seconds", 0, CONNECTION_SECONDS)
    ended = time.monotonic()
    channel.send({"done": False})
    return _Burst(size, began, ended, max(there, pace.link_seconds))


def _together(results: list[Callable[[], _Burst]], latency_seconds: float) -> tuple[float, float]:
    """Return the bytes per second of all connections of one direction, and the overrun."""
    bursts = [result() for result in results]
    seconds = max(burst.ended for burst in bursts) - min(burst.began for burst in bursts)
    size = sum(burst.size for burst in bursts)
    on_links = max(burst.link_seconds for burst in bursts)
    if on_links:
        return size / seconds, max(0.0, 1.0 - on_links / seconds)
    # The round trip is latency. Bursts on emulated links do not wait for it.
    return size / max(seconds - 2 * latency_seconds, seconds / 2), 0.0


def _send_pieces(channel: Channel, pace: Pace, piece_bytes: int, seconds: float) -> int:
    piece = bytearray(piece_bytes)
    sent, began = 0, time.monotonic()
    pace.begin()
    while True:
        piece[0] = _LAST if time.monotonic() - began >= seconds or sent + piece_bytes > MOST_BYTES else 0
        channel.send_bytes(memoryview(piece))
        pace.carry(piece_bytes)
        sent += piece_bytes
        if piece[0] == _LAST:
            return sent


def _receive_pieces(channel: Channel, pace: Pace, piece_bytes: int) -> int:
    piece = bytearray(piece_bytes)
    received = 0
    pace.begin()
    while received <= MOST_BYTES:
        channel.receive_bytes(memoryview(piece))
        pace.carry(piece_bytes)
        received += piece_bytes
        if piece[0] == _LAST:
            return received
    raise PeerError("it sends without end")


def _within(message: dict[str, object], name: str, least: float, most: float) -> float:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise PeerError(f"{name} lies within {least:g} and {most:g}")
    return value
