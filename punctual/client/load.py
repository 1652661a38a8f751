"""Open-loop load on a deployment: requests arrive independently of earlier answers.

Requests go to the servers of the deployment in turn. If a server does not accept one (503, or no connection),
it goes to the next. A request cut off by a dying server is sent once more, which is safe because `predict`
changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from punctual.client.deployments import Deployments
from punctual.errors import PunctualError
from punctual.protocol.latencies import LATENCY_BUCKETS, latency_bucket, latency_percentile

DAY_SECONDS = 86_400.0
#: Interval of address updates. A draining replica answers for at least a second.
_LOOK_SECONDS = 0.5
_TIMEOUT_SECONDS = 40.0
_SECONDS_BETWEEN_TRIES = 0.05
#: A request that no server accepts is given up after this.
_PATIENCE_SECONDS = 10.0
_LATE_SECONDS = 0.05
_REPORT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests per second over time: a constant, or a daily curve between a fifth of the rate and the rate.

    Attributes:
        most: the rate, or its highest value. day_seconds: length of a day, which begins at the curve's
            lowest point; None: the rate is constant.
    """

    most: float
    day_seconds: float | None = None

    def __post_init__(self) -> None:
        if not (self.most > 0.0 and math.isfinite(self.most)):
            raise ValueError(f"rate is {self.most}; it must be above 0")
        if self.day_seconds is not None and not self.day_seconds > 0.0:
            raise ValueError(f"day_seconds is {self.day_seconds}; it must be above 0")

    def at(self, seconds: float) -> float:
        """Return requests per second at a time since the beginning."""
        if self.day_seconds is None:
            return self.most
        height = (1.0 - math.cos(2.0 * math.pi * seconds / self.day_seconds)) / 2.0
        return self.most * (0.2 + 0.8 * height)


@dataclass
class Outcomes:
    """The outcomes of the requests of some time.

    Attributes:
        sent: requests that arrived and were sent. skipped: requests that arrived at the limit of concurrency.
        late: sent late because this machine was too busy; their latencies include the delay.
        answered: with outputs. failed: by the status of the answer, or `no server` or `cut twice`.
        retried: cut off by a dying server and sent once more; also counted as answered or failed.
        latencies: of answered requests, from their arrival, by bucket (`punctual.protocol.latencies`).
    """

    sent: int = 0
    skipped: int = 0
    late: int = 0
    answered: int = 0
    retried: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    latencies: list[int] = field(default_factory=lambda: [0] * LATENCY_BUCKETS)

    def percentile(self, share: float) -> float | None:
        """Return a percentile of the latencies in seconds; None if nothing was answered."""
        return latency_percentile(self.latencies, share)

    def note_failure(self, why: str) -> None:
        """Count one request that failed."""
        self.failed[why] = self.failed.get(why, 0) + 1

    def add(self, other: Outcomes) -> None:
        """Add the outcomes of another period."""
        for name in ("sent", "skipped", "late", "answered", "retried"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for why, count in other.failed.items():
            self.failed[why] = self.failed.get(why, 0) + count
        self.latencies = [sum(pair) for pair in zip(self.latencies, other.latencies, strict=True)]


class AddressBook:
    """The addresses of serving replicas, from the platform."""

    def __init__(self, deployments: Deployments, deployment_id: str) -> None:
        self._deployments = deployments
        self._id = deployment_id
        self.addresses: list[str] = []
        self._position = 0

    def look(self) -> None:
        """Update the addresses."""
        replicas = self._deployments.get(self._id)["replicas"]
        self.addresses = [str(row["address"]) for row in replicas if row["state"] == "serving"]

    def choose(self, avoided: Collection[str] = ()) -> str | None:
        """Return the next address in turn; None if no other replica than the avoided ones serves."""
        addresses = [address for address in self.addresses if address not in avoided]
        if not addresses:
            return None
        self._position += 1
        return addresses[self._position % len(addresses)]


class OpenLoop:
    """Sends requests at a rate, at most ``most_at_once`` at a time, until `stop` or the end.

    ``seconds``: outcomes of the requests that arrived in each second.
    """

    def __init__(
        self, book: AddressBook, token: str, inputs: Sequence[Any], rate: Rate, most_at_once: int = 64,
        seed: int = 0,
    ) -> None:  # fmt: skip
        if not inputs:
            raise ValueError("inputs are empty; a request has at least one")
        self._book = book
        self._headers = {"Authorization": f"Bearer {token}"}
        self._inputs = list(inputs)
        self._rate = rate
        self._most_at_once = most_at_once
        self._random = random.Random(seed)
        self._stopped = False
        self.seconds: list[Outcomes] = []

    def stop(self) -> None:
        """Stop early; requests in progress are still awaited."""
        self._stopped = True

    def total(self) -> Outcomes:
        """Return the outcomes of all requests so far."""
        total = Outcomes()
        for second in list(self.seconds):
            total.add(second)
        return total

    def run(self, seconds: float, report: Callable[[Outcomes], None] | None = None) -> Outcomes:
        """Send requests for `seconds`; return all outcomes.

        Args:
            report: receives the total about every ten seconds.
        """
        asyncio.run(self._run(seconds, report))
        return self.total()

    async def _run(self, seconds: float, report: Callable[[Outcomes], None] | None) -> None:
        await asyncio.to_thread(self._book.look)
        watching = [asyncio.create_task(self._watch())]
        if report is not None:
            watching.append(asyncio.create_task(self._report(report)))
        limits = httpx.Limits(max_connections=self._most_at_once, max_keepalive_connections=None)
        under_way: set[asyncio.Task[None]] = set()
        async with httpx.AsyncClient(
            headers=self._headers, timeout=_TIMEOUT_SECONDS, limits=limits, trust_env=False
        ) as client:
            began, arrival = time.monotonic(), 0.0
            while arrival < seconds and not self._stopped:
                await asyncio.sleep(max(0.0, began + arrival - time.monotonic()))
                outcomes = self._second(arrival)
                if len(under_way) < self._most_at_once:
                    outcomes.sent += 1
                    task = asyncio.create_task(self._send(client, outcomes, began + arrival))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                else:
                    outcomes.skipped += 1
                # Poisson arrivals.
                arrival += self._random.expovariate(self._rate.at(arrival))
            await asyncio.gather(*under_way)
        for task in watching:
            task.cancel()

    def _second(self, arrival: float) -> Outcomes:
        while len(self.seconds) <= int(arrival):
            self.seconds.append(Outcomes())
        return self.seconds[int(arrival)]

    async def _report(self, report: Callable[[Outcomes], None]) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            # A report may call the platform, so it runs in a thread.
            await asyncio.to_thread(report, self.total())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            # Keep the known addresses while the platform does not answer.
            with contextlib.suppress(PunctualError):
                await asyncio.to_thread(self._book.look)

    async def _send(self, client: httpx.AsyncClient, outcomes: Outcomes, arrived: float) -> None:
        """Send one request until a server accepts it."""
        is_retry, why = False, "no server"
        avoided: set[str] = set()
        body = {"inputs": [self._random.choice(self._inputs)]}
        began = time.monotonic()
        outcomes.late += began - arrived > _LATE_SECONDS
        while time.monotonic() - began < _PATIENCE_SECONDS:
            address = self._book.choose(avoided)
            if address is None:
                avoided.clear()
                await asyncio.sleep(_SECONDS_BETWEEN_TRIES)
                continue
            try:
                answer = await client.post(f"{address}/predict", json=body)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
                avoided.add(address)
                continue
            except httpx.TransportError:
                if is_retry:
                    why = "cut twice"
                    break
                is_retry = True
                outcomes.retried += 1
                avoided.add(address)
                continue
            if answer.status_code == 200:
                outcomes.answered += 1
                outcomes.latencies[latency_bucket(time.monotonic() - arrived)] += 1
                return
            why = str(answer.status_code)
            if answer.status_code != 503:
                break
            avoided.add(address)
        outcomes.note_failure(why)
