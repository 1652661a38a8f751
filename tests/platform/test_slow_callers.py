"""Callers that are slow, many or without a credential delay no other caller, at any server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import uvicorn

from config.serving import lanes
from config.serving.front import Front
from config.serving.lanes import Crowded, Lane
from config.serving.workers import SERVER_OPTIONS
from launch.waiting import wait_until
from workers.serving import connections
from workers.serving.connections import RECEIVING_FROM_A_PEER, is_late

LARGE_BYTES = 32 * 1024 * 1024
UNFINISHED = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
KNOWN = {"Authorization": "Agent x"}


@contextmanager
def served(application: Any) -> Iterator[str]:
    with serving(application) as (url, _server):
        yield url


@contextmanager
def serving(application: Any) -> Iterator[tuple[str, uvicorn.Server]]:
    """Serve the application behind production's front and protocol, on a port of its own."""
    front = Front(application, threads=1, anonymous_threads=1)
    server = uvicorn.Server(uvicorn.Config(front, **SERVER_OPTIONS, log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
    finally:
        server.should_exit = True
        thread.join()


def echo(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    start(
        "200 OK", [("Content-Length", str(len(body))), ("X-Proxy", environ.get("HTTP_X_FORWARDED_FOR", ""))]
    )
    return [body]


def large(_environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
    start("200 OK", [("Content-Length", str(LARGE_BYTES))])
    return [bytes(LARGE_BYTES)]


def opened(url: str, sent: bytes) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(sent)
    return connection


def all_of(connection: socket.socket) -> bytes:
    received = b""
    with closing(connection):
        while part := connection.recv(65536):
            received += part
    return received


@pytest.mark.parametrize(
    ("elapsed_seconds", "received_bytes", "late"),
    [(9.9, 0, False), (10.1, 0, True), (10.1, 80_000, False), (20.1, 80_000, True), (301, 10**9, True)],
)
def test_a_request_has_ten_seconds_and_its_bytes(
    elapsed_seconds: float, received_bytes: int, late: bool
) -> None:
    assert is_late(elapsed_seconds, received_bytes) is late


@pytest.mark.parametrize("sent", [UNFINISHED, b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-"])
def test_an_unfinished_request_is_refused_and_delays_no_other(sent: bytes, monkeypatch: Any) -> None:
    with served(echo) as url:
        slow = [opened(url, sent) for _ in range(8)]
        assert httpx.post(url, content=b"quick", timeout=60).content == b"quick"
        monkeypatch.setattr(connections, "GRACE_SECONDS", 0.0)
        for connection in slow:
            assert all_of(connection).startswith(b"HTTP/1.1 408 ")


def test_a_silent_connection_is_closed(monkeypatch: Any) -> None:
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.0)
    with served(echo) as url:
        assert all_of(opened(url, b"")) == b""


def test_too_many_unfinished_requests_end_the_oldest() -> None:
    with served(echo) as url:
        first = opened(url, UNFINISHED)
        assert httpx.post(url, content=b"quick", timeout=60).content == b"quick", "the first has been read"
        slow = [first, *(opened(url, UNFINISHED) for _ in range(RECEIVING_FROM_A_PEER))]
        assert all_of(first).startswith(b"HTTP/1.1 408 ")
        assert httpx.post(url, content=b"quick", timeout=60).content == b"quick"
        for connection in slow[1:]:
            connection.close()


def test_a_caller_that_does_not_read_holds_no_thread(monkeypatch: Any) -> None:
    with serving(large) as (url, server):
        idle = opened(url, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with httpx.Client() as client:
            assert len(client.get(url, timeout=60).content) == LARGE_BYTES
        monkeypatch.setattr(connections, "GRACE_SECONDS", 1.0)
        monkeypatch.setattr(connections, "BYTES_PER_SECOND", LARGE_BYTES)
        assert wait_until(lambda: not server.server_state.connections, timeout_seconds=120)
        assert len(all_of(idle)) < LARGE_BYTES


def test_callers_without_a_credential_have_separate_threads() -> None:
    release = threading.Event()

    def waits(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        if "HTTP_AUTHORIZATION" not in environ:
            release.wait()
        return echo(environ, start)

    with served(waits) as url:
        knocking = [opened(url, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(8)]
        assert httpx.post(url, content=b"known", headers=KNOWN, timeout=60).content == b"known"
        release.set()
        for connection in knocking:
            assert connection.recv(12) == b"HTTP/1.1 200"
            connection.close()


def test_bodies_arrive_whole_and_bounded(settings: Any) -> None:
    settings.MAXIMUM_BUNDLE_BYTES, settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 60_000, 40_000
    with served(echo) as url:
        assert httpx.post(url, content=iter([b"in ", b"chunks"]), timeout=60).content == b"in chunks"
        assert httpx.post(url, content=bytes(100_000), timeout=60).content == bytes(100_000)
        refused = httpx.post(url, content=bytes(100_001), timeout=60)
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
        unread = opened(url, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        assert all_of(unread).startswith(b"HTTP/1.1 413 ")


def test_headers_are_bounded_and_cannot_imitate_trusted_ones() -> None:
    with served(echo) as url:
        endless = opened(url, b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 10_000)
        assert all_of(endless).startswith(b"HTTP/1.1 431 ")
        pretended = httpx.get(url, headers={"X_Forwarded_For": "192.0.2.1"}, timeout=60)
        assert pretended.headers["X-Proxy"] == ""


def test_peers_take_turns_for_a_thread() -> None:
    asyncio.run(_peers_take_turns())


async def _peers_take_turns() -> None:
    lane, release = Lane("test", 1), threading.Event()
    order: list[str] = []
    first = asyncio.ensure_future(lane.run("a", release.wait))
    await asyncio.sleep(0)
    calls = [lane.run(peer, partial(order.append, peer)) for peer in "aaabcb"]
    waiting = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(first, *waiting)
    assert "".join(order) == "abcaba"


def test_a_peers_calls_that_wait_are_bounded() -> None:
    asyncio.run(_waiting_calls_are_bounded())


async def _waiting_calls_are_bounded() -> None:
    lane, release = Lane("test", 1), threading.Event()
    waiting = [asyncio.ensure_future(lane.run("a", release.wait)) for _ in range(lanes.WAITING_OF_A_PEER + 1)]
    await asyncio.sleep(0)
    with pytest.raises(Crowded):
        await lane.run("a", release.wait)
    other = asyncio.ensure_future(lane.run("b", release.wait))
    release.set()
    await asyncio.gather(*waiting, other)
