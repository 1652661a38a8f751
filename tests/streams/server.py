"""A running stream process, as in production, on the test's database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from django.db import connection

from tests.dashboard.waiting import wait_until
from workers.runtime.at_home.local_ports import free_port

#: Shared by all requests: each new client would load all certificates.
CLIENT = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
#: Few, so that the limit is reached quickly.
STREAMS_PER_CALLER = 8


@dataclass(frozen=True, slots=True)
class StreamServer:
    """The server's address and process."""

    url: str
    process: subprocess.Popen[bytes]


def start_stream_server(folder: Path, redis_url: str) -> StreamServer:
    """Start the stream process of production on the test's database."""
    port = free_port()
    log = folder / "streams.log"
    database = (
        urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "config.serving", "127.0.0.1", str(port)],
            env={**os.environ, "DATABASE_URL": database, "REDIS_URL": redis_url,
                 "DJANGO_SETTINGS_MODULE": "config.settings_streams",
                 "STREAM_CONNECTIONS_PER_CALLER": str(STREAMS_PER_CALLER)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    wait_until(
        lambda: process.poll() is not None or _answers(url), "the stream server answers", timeout_seconds=120
    )
    assert process.poll() is None, log.read_text()
    return StreamServer(url, process)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return CLIENT.get(f"{url}/stream/cluster").status_code == 401
    except httpx.TransportError:
        return False


@pytest.fixture(scope="session")
def stream_server(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamServer]:
    """Yield one server for all tests: it holds no state of its own."""
    server = start_stream_server(tmp_path_factory.mktemp("streams"), os.environ["REDIS_URL"])
    yield server
    stop(server.process)
