"""Open-loop load: refused requests go to another server, cut ones are sent once more, and each is counted."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from deployments.models import Deployment, DeploymentToken, Replica
from punctual.client.load import DAY_SECONDS, AddressBook, OpenLoop, Outcomes, Rate
from scheduling.models import Job
from tests.cli.conftest import Run
from tests.cli.test_deployments import job, serve

__all__ = ["job"]  # fixture

Handler = Callable[[httpx.Request], httpx.Response]


def send(handler: Handler, *addresses: str, count: int = 1) -> Outcomes:
    """Send requests to servers that answer as ``handler`` does."""
    book = AddressBook(SimpleNamespace(), "one")  # type: ignore[arg-type]
    book.addresses = list(addresses)
    loop, outcomes = OpenLoop(book, "token", [1.0], Rate(1.0)), Outcomes()

    async def send_all() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
            for _ in range(count):
                await loop._send(client, outcomes, time.monotonic())

    asyncio.run(send_all())
    return outcomes


def test_a_cut_request_is_sent_once_more_to_another_server() -> None:
    def cut_at_a(request: httpx.Request) -> httpx.Response:
        if request.url.host == "a":
            raise httpx.RemoteProtocolError("cut", request=request)
        return httpx.Response(200, json={"outputs": [1.0]})

    result = send(cut_at_a, "http://a", "http://b", count=4)
    assert (result.answered, result.retried, result.failed) == (4, 3, {})
    assert sum(result.latencies) == 4
    assert send(cut_at_a, "http://a", "http://a:2").failed == {"cut twice": 1}


def test_a_refused_request_goes_to_the_next_server() -> None:
    def refuse_at_a(request: httpx.Request) -> httpx.Response:
        if request.url.host == "a":
            return httpx.Response(503)
        if request.url.host == "b":
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200)

    result = send(refuse_at_a, "http://a", "http://b", "http://c", count=3)
    assert (result.answered, result.retried, result.failed) == (3, 0, {})


def test_failures_are_counted_by_their_status() -> None:
    result = send(lambda request: httpx.Response(500), "http://a", count=2)
    assert (result.answered, result.failed) == (0, {"500": 2})


def test_a_daily_curve_rises_to_its_rate_at_noon() -> None:
    curve = Rate(50.0, DAY_SECONDS)
    assert [round(curve.at(hour * 3600.0), 6) for hour in (0, 6, 12, 24)] == [10.0, 30.0, 50.0, 10.0]
    assert Rate(5.0).at(1e6) == 5.0
    with pytest.raises(ValueError, match="rate is 0"):
        Rate(0.0)


class Answering(BaseHTTPRequestHandler):
    """Returns the inputs."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = json.dumps({"outputs": body["inputs"]}).encode()
        self.send_response(200 if self.headers["authorization"].startswith("Bearer pd_") else 401)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.django_db(transaction=True)
def test_load_is_sent_to_the_servers_with_its_own_token(job: Job, run: Run, port: int) -> None:
    run("deploy", job.pk, "--servers", "1")
    serve(Deployment.objects.get())
    replica = Replica.objects.get()
    replica.server.address = "127.0.0.1"
    replica.server.save(update_fields=["address"])
    Replica.objects.update(port=port)
    options = ("--rate", "50", "--minutes", "0.01")
    result = json.loads(run("deployments", "load", replica.deployment_id, "0.5", *options, "--json").out)
    assert result["sent"] == result["answered"] > 0
    assert (result["failed"], result["retried"], result["skipped"]) == ({}, 0, 0)
    assert DeploymentToken.objects.get().revoked_at is not None
    wrong = run("deployments", "load", replica.deployment_id, "0.5", "--rate", "0")
    assert (wrong.code, "rate is 0.0; it must be above 0" in wrong.err) == (2, True)
