"""The proxy between an agent and the control plane: messages arrive whole, twice, late or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from faults.proxy import PASSES, Behaviour, Proxy


class Upstream(ThreadingHTTPServer):
    """Records the messages that it receives, in order, and answers with them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.heard: list[str] = []
        self.hosts: set[str] = set()
        self.more = threading.Condition()

    def wait_for(self, number: int) -> list[str]:
        with self.more:
            assert self.more.wait_for(lambda: len(self.heard) >= number, 60)
            return list(self.heard)


class _Answers(BaseHTTPRequestHandler):
    server: Upstream

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.more:
            self.server.heard.append(body.decode())
            self.server.hosts.add(self.headers["Host"])
            self.server.more.notify_all()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", 0), ("127.0.0.1", upstream.server_port)) as running:
        yield running


def send(proxy: Proxy, text: str, seconds: float = 60.0) -> str:
    return httpx.post(
        f"http://127.0.0.1:{proxy.port}/report", content=text, timeout=seconds, trust_env=False
    ).text


def test_messages_pass_unchanged_under_the_servers_own_name(proxy, upstream):
    long = "x" * 300_000
    with httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}", trust_env=False) as client:
        assert client.post("/", content=long).text == long
        assert client.post("/", content="again").text == "again"
    assert upstream.heard == [long, "again"]
    assert upstream.hosts == {f"127.0.0.1:{upstream.server_port}"}


def test_doubled_messages_arrive_twice_and_get_one_answer(proxy, upstream):
    proxy.behave(Behaviour(double=True))
    assert send(proxy, "first") == "first"
    assert send(proxy, "second") == "second"
    assert sorted(upstream.wait_for(4)) == ["first", "first", "second", "second"]


def test_a_held_back_message_arrives_after_a_later_one(proxy, upstream, monkeypatch):
    sleep, over = asyncio.sleep, threading.Event()

    async def hold_back(seconds: float) -> None:
        while not over.is_set():
            await sleep(0.01)

    monkeypatch.setattr("faults.proxy.asyncio.sleep", hold_back)
    proxy.behave(Behaviour(hold_back_seconds=1.0))
    with pytest.raises(httpx.TimeoutException):
        send(proxy, "early", seconds=1.0)
    assert send(proxy, "late") == "late"
    over.set()
    assert upstream.wait_for(2) == ["late", "early"]


def test_a_cut_link_drops_all_messages_in_flight(proxy, upstream):
    proxy.behave(Behaviour(cut=True))
    with ThreadPoolExecutor() as threads:
        lost = threads.submit(send, proxy, "lost")
        with pytest.raises(httpx.TimeoutException):
            send(proxy, "also lost", seconds=1.0)
        proxy.behave(PASSES)
        with pytest.raises(httpx.TransportError):
            lost.result(60)
    assert send(proxy, "passes") == "passes"
    assert upstream.heard == ["passes"]
