"""Requests per second of a serving worker with a trivial function, against bare uvicorn with starlette.

    .tool/bin/uv pip install --target FOLDER starlette      # no other part of the platform needs it
    PYTHONPATH=FOLDER python -m benchmarks.long.serving_http [--rounds 7] [--seconds 3] [--connections 32]

Both servers are separate processes on the same event loop and HTTP parser, and receive the same requests
alternately from the same client, which keeps each connection busy. Both parse the inputs and return them as
outputs. The worker also checks token and body, gathers batches, calls the function in a thread and counts.

Two ratios are printed: of requests per second, and of the servers' processor time per request, which depends
less on other work of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import socket
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from workers.serving.limits import ServingLimits
from workers.serving.server import ServingServer, listen

TOKEN = "benchmark"
INPUTS = [[0.5, 1.5, 2.5, 3.5]]


@dataclass(frozen=True)
class Measured:
    """One server in one round."""

    requests_per_second: float
    cpu_seconds_per_request: float


def serve_worker(listener: socket.socket) -> None:
    """Run a serving worker whose function returns its inputs."""
    digests = [hashlib.sha256(TOKEN.encode()).hexdigest()]
    server = ServingServer(
        listener, lambda batch: batch, ServingLimits(), 1, lambda: digests, ends_process=True
    )
    server.start()
    while True:
        time.sleep(0.25)
        server.check()
        server.counts.report(server.waiting)


def serve_bare(listener: socket.socket) -> None:
    """Run uvicorn and starlette, with one route that returns its inputs."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def predict(request: Any) -> Any:
        body = await request.json()
        return JSONResponse({"outputs": body["inputs"]})

    application = Starlette(routes=[Route("/predict", predict, methods=["POST"])])
    config = uvicorn.Config(application, log_level="error", access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


class Client(asyncio.Protocol):
    """A connection that sends the next request once it has the answer to the one before."""

    def __init__(self, request: bytes) -> None:
        self.answers = 0
        self._request = request
        self._left = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Send the first request."""
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count a whole answer, and send the next request."""
        self._left += data
        head, found, body = self._left.partition(b"\r\n\r\n")
        if not found:
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(self._left.decode(errors="replace"))
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) == length:
            self.answers += 1
            self._left = b""
            self._transport.write(self._request)

    def close(self) -> None:
        """Send no more."""
        self._transport.abort()


async def ask(port: int, connections: int, seconds: float) -> float:
    """Return the requests per second over ``connections`` connections."""
    body = json.dumps({"inputs": INPUTS}).encode()
    head = (
        f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(connections):
        _, client = await loop.create_connection(lambda: Client(request), "127.0.0.1", port)
        clients.append(client)
    began_at = loop.time()
    before = sum(client.answers for client in clients)
    await asyncio.sleep(seconds)
    answers = sum(client.answers for client in clients) - before
    elapsed_seconds = loop.time() - began_at
    for client in clients:
        client.close()
    return answers / elapsed_seconds


class Peer:
    """One of the two servers, in a process of its own."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        with closing(listen("127.0.0.1", 0)) as listener:
            self.port = int(listener.getsockname()[1])
            self.process: BaseProcess = get_context("spawn").Process(target=serve, args=(listener,))
            self.process.start()

    def wait(self) -> None:
        """Return once it answers; it may be importing PyTorch."""
        url, headers = f"http://127.0.0.1:{self.port}/predict", {"Authorization": f"Bearer {TOKEN}"}
        httpx.post(url, json={"inputs": INPUTS}, headers=headers, timeout=120).raise_for_status()

    def measure(self, connections: int, seconds: float) -> Measured:
        """Measure one round."""
        process = psutil.Process(self.process.pid)
        before = process.cpu_times()
        began_at = time.monotonic()
        with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
            rate = runner.run(ask(self.port, connections, seconds))
        after = process.cpu_times()
        requests = rate * (time.monotonic() - began_at)
        return Measured(rate, (after.user + after.system - before.user - before.system) / requests)


def main() -> int:
    """Run the rounds; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args()
    try:
        import starlette  # noqa: F401
    except ImportError:
        sys.stderr.write("This needs starlette: see the first lines of benchmarks/long/serving_http.py.\n")
        return 1
    peers = {"worker": Peer(serve_worker), "bare": Peer(serve_bare)}
    try:
        for peer in peers.values():
            peer.wait()
            peer.measure(chosen.connections, 1.0)
        rounds = [
            {name: peer.measure(chosen.connections, chosen.seconds) for name, peer in peers.items()}
            for _ in range(chosen.rounds)
        ]
    finally:
        for peer in peers.values():
            peer.process.kill()
    rates = [found["worker"].requests_per_second / found["bare"].requests_per_second for found in rounds]
    costs = [
        found["bare"].cpu_seconds_per_request / found["worker"].cpu_seconds_per_request for found in rounds
    ]
    figures: dict[str, Any] = {
        "requests_per_second": {
            name: statistics.median(found[name].requests_per_second for found in rounds) for name in peers
        },
        "ratio": statistics.median(rates),
        "ratios": rates,
        "ratio_of_processor_time": statistics.median(costs),
    }
    for name, rate in figures["requests_per_second"].items():
        print(f"{name}: {rate:.0f} requests per second at the median of {chosen.rounds} rounds")
    print(f"ratio: {figures['ratio']:.2f} (rounds: {', '.join(f'{ratio:.2f}' for ratio in sorted(rates))})")
    print(f"ratio of processor time per request: {figures['ratio_of_processor_time']:.2f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
