"""A request that is too long or malformed is answered by a problem document like any other."""

from __future__ import annotations

import json
import socket
from contextlib import closing

import pytest

from tests.platform.test_slow_callers import all_of, echo, opened, served
from workers.serving import connections
from workers.serving.connections import ADDRESS_BYTES, HEADER_BYTES

END = b" HTTP/1.1\r\nHost: localhost\r\n"
HEADER = b"X-Long: " + b"x" * HEADER_BYTES + b"\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GET /?search=" + b"x" * ADDRESS_BYTES + END + b"\r\n", 414, "address_too_long"),
        (b"GET /" + b"x" * 200_000 + END + b"\r\n", 414, "address_too_long"),
        (b"GET /" + b"x" * 200_000, 414, "address_too_long"),
        (b"GET /" + END + HEADER + b"\r\n", 431, "too_large"),
        (b"GET /" + END + HEADER, 431, "too_large"),
        (
            b"GET /" + END + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 1000) for n in range(80)) + b"\r\n",
            431,
            "too_large",
        ),
        ("GET /é".encode("latin-1") + END + b"\r\n", 400, "not_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "not_http"),
        (b"HELLO\r\n\r\n", 400, "not_http"),
    ],
)
def test_oversized_or_malformed_requests_get_a_problem_document(sent: bytes, status: int, code: str) -> None:
    with served(echo) as url:
        head, _, body = all_of(opened(url, sent)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"application/problem+json" in head
    assert json.loads(body)["code"] == code


def test_an_address_with_the_longest_list_of_filters_is_accepted() -> None:
    request = b"GET /?search=" + b"x" * (ADDRESS_BYTES - 20) + END + b"Connection: close\r\n\r\n"
    with served(echo) as url:
        assert all_of(opened(url, request)).startswith(b"HTTP/1.1 200 ")


def send_for_ever(connection: socket.socket) -> None:
    with closing(connection):
        while True:
            connection.sendall(b"x")


def test_a_caller_that_never_stops_sending_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(echo) as url:
        connection = opened(url, b"GET /" + b"x" * (2 * ADDRESS_BYTES))
        assert connection.recv(12) == b"HTTP/1.1 414"
        monkeypatch.setattr(connections, "GRACE_SECONDS", 0.0)
        monkeypatch.setattr(connections, "BYTES_PER_SECOND", 10**9)
        with pytest.raises(ConnectionError):
            send_for_ever(connection)
