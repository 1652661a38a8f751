"""Two hundred slow connections at every listener for two minutes: no lease is late, no page waits."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from launch import Platform
from punctual.client import Client
from tests.end_to_end.conftest import EXAMPLES, GLOBAL_BATCH_SIZE, nothing_is_wrong, wait_for
from workers.serving.connections import GRACE_SECONDS

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

Rows = Callable[..., list[dict[str, Any]]]
CONNECTIONS = 200
SECONDS = 120.0
#: Limit for 95 % of the pages. The crowd and the asking client share this process, which delays a few.
PAGE_SECONDS = 1.0
#: A page that waits for a slow caller waits until the server disconnects it.
LONGEST_PAGE_SECONDS = GRACE_SECONDS / 2
#: The first bytes of each connection, followed by a byte now and then.
BEGINNINGS = (
    b"POST /agent/v1/enrol HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
    (
        b"POST /api/v1/login/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000\r\n\r\n{"
    ),
    b"GET /stream/cluster HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    b"",
)


class Crowd(threading.Thread):
    """Slow connections to one listener; a disconnected one reconnects."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.address = urlsplit(url).hostname, urlsplit(url).port
        self.ended = threading.Event()
        self.cut_off: Counter[bytes] = Counter()
        #: Its connections, each with its index of the first bytes.
        self.numbers: dict[socket.socket, int] = {}

    def run(self) -> None:
        with selectors.DefaultSelector() as waiting:
            for number in range(CONNECTIONS):
                self._come(waiting, number)
            next_byte_at = time.monotonic() + 2.0
            while not self.ended.is_set():
                ready = self._ready(waiting)
                for connection in [one for one in self.numbers if one in ready]:
                    self._heard(waiting, connection)
                if time.monotonic() >= next_byte_at:
                    next_byte_at += 2.0
                    for connection in list(self.numbers):
                        self._dribble(connection)
        for connection in self.numbers:
            connection.close()

    @staticmethod
    def _ready(waiting: selectors.BaseSelector) -> set[object]:
        return {key.fileobj for key, _events in waiting.select(0.2)}

    def _come(self, waiting: selectors.BaseSelector, number: int) -> None:
        connection = socket.create_connection(self.address)
        connection.sendall(BEGINNINGS[number % len(BEGINNINGS)])
        waiting.register(connection, selectors.EVENT_READ)
        self.numbers[connection] = number

    def _heard(self, waiting: selectors.BaseSelector, connection: socket.socket) -> None:
        try:
            said = connection.recv(65536)
        except OSError:
            said = b""
        self.cut_off[said[9:12]] += 1
        waiting.unregister(connection)
        connection.close()
        self._come(waiting, self.numbers.pop(connection))

    def _dribble(self, connection: socket.socket) -> None:
        if BEGINNINGS[self.numbers[connection] % len(BEGINNINGS)]:
            # A closed connection is found at the next check.
            with suppress(OSError):
                connection.sendall(b" ")


@contextmanager
def crowds(platform: Platform) -> Iterator[list[Crowd]]:
    found = [Crowd(url) for url in (platform.web_url, platform.agent_url, platform.stream_url)]
    for crowd in found:
        crowd.start()
    try:
        yield found
    finally:
        for crowd in found:
            crowd.ended.set()
        for crowd in found:
            crowd.join()


def test_no_lease_is_late_and_no_page_waits(running_platform: Platform, person: Client, rows: Rows) -> None:
    job = person.submit(
        EXAMPLES / "image_classifier.py",
        name="beside a crowd",
        batch_size=GLOBAL_BATCH_SIZE,
        max_iterations=1_000,
        deadline=3000.0,
    )
    wait_for(job, lambda job: job.state == "running", "running", seconds=180)
    states: Counter[str] = Counter()
    page_seconds: dict[str, list[float]] = defaultdict(list)
    pages = ("/login/", "/healthz", "/api/v1/jobs/", "/api/v1/cluster/")
    with Client(running_platform.web_url, token="") as anonymous:
        headers = {"Authorization": f"Bearer {anonymous.login(*running_platform.operator_login)}"}
    with crowds(running_platform) as around, httpx.Client(base_url=running_platform.web_url) as web:
        ends_at = time.monotonic() + SECONDS
        while time.monotonic() < ends_at:
            for page in pages:
                began = time.monotonic()
                assert web.get(page, headers=headers, timeout=30).status_code == 200
                page_seconds[page].append(time.monotonic() - began)
            states.update(row["state"] for row in rows("select state from cluster_server"))
            time.sleep(0.5)
    assert set(states) == {"up"}, states
    for page, seconds in page_seconds.items():
        assert np.quantile(seconds, 0.95) < PAGE_SECONDS, (page, seconds)
        assert max(seconds) < LONGEST_PAGE_SECONDS, (page, seconds)
    for crowd in around:
        assert crowd.cut_off[b"408"] > CONNECTIONS, crowd.cut_off
    job.cancel()
    nothing_is_wrong(rows)
