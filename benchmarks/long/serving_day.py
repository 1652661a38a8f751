"""A deployment under open-loop load while a replica is killed and replaced, and its servers are lent and come
back, beside a promised job.

    python -m benchmarks.long.serving_day [--minutes 10] [--json OUT]

Starts its own platform: one training server and three inference servers, scheduled by their deployments. Two
servers suffice for the load at first, and the third is lent to a best-effort job. The load rises until it
needs the third server, and falls again. Meanwhile a promised job trains.

| share of the time | what happens |
|---|---|
| 0.15 | SIGKILL to a replica's process |
| 0.30 | another generation takes over, server by server |
| 0.45 to 0.80 | the load rises and falls |

Printed: failed requests, without those cut by the killed replica and repeated; the share of the time within
the latency target; the moves of servers; the result of the promise.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from launch import Platform, PlatformSettings
from launch.agents import INFERENCE_CLUSTER
from launch.folders import PROJECT
from launch.settings import DEPLOYMENTS_USAGE
from launch.waiting import wait_until
from punctual.client import Client
from punctual.client.load import AddressBook, OpenLoop, Outcomes, Rate

MODEL = PROJECT / "benchmarks/serving/paced_model.py"
EXAMPLE = PROJECT / "examples/image_classifier.py"
SERVERS = 3
PERIOD_SECONDS, HOLD_SECONDS = 10.0, 20.0
TARGET_SECONDS = 0.25
LOWER_RATE, HIGHER_RATE = 20.0, 65.0
KILL_AT, REPLACE_AT, RISE_AT, FALL_AT = 0.15, 0.30, 0.45, 0.80
MOST_AT_ONCE = 200
#: Length of the windows in which the client's latencies are evaluated.
WINDOW_SECONDS = 5
QUICK_PERIODS = {"SLOT_SECONDS": "2", "SUSPECT_SECONDS": "6", "FENCE_SECONDS": "20", "REPORT_SECONDS": "0.5"}


@dataclass(frozen=True)
class Rush(Rate):
    """The lower rate, and a rise to the higher one and back between two times."""

    rise_seconds: float = 0.0
    fall_seconds: float = 0.0

    def at(self, seconds: float) -> float:
        """Return requests per second at a time since the beginning."""
        if not self.rise_seconds <= seconds < self.fall_seconds:
            return LOWER_RATE
        share = (seconds - self.rise_seconds) / (self.fall_seconds - self.rise_seconds)
        return LOWER_RATE + (self.most - LOWER_RATE) * math.sin(math.pi * share) ** 2


@dataclass(frozen=True)
class Figures:
    """Results. Shares are of windows with requests, by the client; and of samples, by the servers."""

    requests: int
    failed: dict[str, int]
    retried: int
    skipped: int
    sent_late: int
    p50_seconds: float | None
    p95_seconds: float | None
    share_within_target: float
    share_within_target_on_servers: float
    loans: int
    returns: int
    seconds_to_return: list[float]
    returned_on_time: bool
    generation_served: bool
    promise: str


def clients(platform: Platform) -> tuple[Client, Client]:
    """Return the demo user and the operator."""
    person, operator = (
        Client(
            platform.web_url,
            Client(platform.web_url, token="").login(*login),
            retry_seconds=120.0,
            timeout_seconds=60.0,
        )
        for login in (platform.demo_login, platform.operator_login)
    )
    return person, operator


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 400.0) -> None:
    """Wait until the condition holds; end the benchmark if it does not in time."""
    if not wait_until(condition, timeout_seconds=seconds, interval_seconds=0.5):
        raise SystemExit(f"{what}: not within {seconds:g} s")


def deploy(person: Client) -> str:
    """Train the model, deploy it on two servers and wait until they answer; return the deployment's id."""
    job = person.submit(MODEL, batch_size=16, max_iterations=20).wait(timeout_seconds=400)
    made = person.deployments.create(
        job.id, name="day", servers={"min": 2, "max": SERVERS, "wanted": 2},
        latency_target_seconds=TARGET_SECONDS, max_batch=4,
    )  # fmt: skip
    ready = person.deployments.wait_until_ready(made["id"], timeout_seconds=400)
    if ready["state"] != "ready":
        raise SystemExit(f"the deployment is {ready['state']}: {ready['reason']}")
    return str(made["id"])


def kill_replica(platform: Platform, server: str) -> bool:
    """SIGKILL the replica's process on a server; return whether there was one."""
    for file in (platform.settings.data / "agents" / server / "workers").glob("*/assignment.json"):
        if json.loads(file.read_text())["job"].startswith("serve-"):
            pid = json.loads((file.parent / "launcher.json").read_text())["worker_pid"]
            os.kill(pid, signal.SIGKILL)
            return True
    return False


class Day:
    """The load and what happens during it."""

    def __init__(self, platform: Platform, person: Client, operator: Client, deployment: str) -> None:
        self.platform, self.person, self.operator, self.deployment = platform, person, operator, deployment

    def run(self, seconds: float) -> Figures:
        """Send the load for ``seconds`` seconds; return the results."""
        promised = self.person.submit(
            EXAMPLE, name="promised", batch_size=64, max_iterations=round(seconds), deadline=2.0 * seconds
        )
        filler = self.person.submit(EXAMPLE, name="filler", batch_size=64, max_iterations=1_000_000)
        wait_for(lambda: self._lent() > 0, "a server is lent")
        token = self.person.deployments.issue_token(self.deployment, "serving day")["token"]
        loop = OpenLoop(
            AddressBook(self.person.deployments, self.deployment), str(token), [0.25, 0.5],
            Rush(HIGHER_RATE, None, RISE_AT * seconds, FALL_AT * seconds), MOST_AT_ONCE,
        )  # fmt: skip
        events = threading.Thread(target=self._happen, args=(seconds,), daemon=True)
        events.start()
        total = loop.run(seconds, self._say)
        events.join(60.0)
        filler.cancel()
        promised = promised.refresh()
        if promised.promise_outcome == "open":
            promised = promised.wait(timeout_seconds=2.0 * seconds)
        return self._figures(total, loop.seconds, promised.promise_outcome)

    def _happen(self, seconds: float) -> None:
        began = time.monotonic()
        time.sleep(KILL_AT * seconds)
        if not kill_replica(self.platform, self._serving_server()):
            print("no replica's process was found to kill", flush=True)
        time.sleep(max(0.0, began + REPLACE_AT * seconds - time.monotonic()))
        self.person.deployments.change(self.deployment, max_batch=3)

    def _serving_server(self) -> str:
        replicas = self.person.deployments.get(self.deployment)["replicas"]
        return str(next(row["server"] for row in replicas if row["state"] == "serving"))

    def _lent(self) -> int:
        servers = self.operator.inference.servers(INFERENCE_CLUSTER)
        return sum(row["lending_state"] == "on_loan" for row in servers)

    def _say(self, total: Outcomes) -> None:
        found = self.person.deployments.get(self.deployment)
        states = [row["state"] for row in found["replicas"]]
        print(
            f"{total.sent} sent, {sum(total.failed.values())} failed, {total.retried} retried; "
            f"{self._lent()} lent; wanted {found['servers']['wanted']}, replicas {states}",
            flush=True,
        )

    def _figures(self, total: Outcomes, seconds: Sequence[Outcomes], promise: str) -> Figures:
        inference = self.operator.inference
        back = [row for row in inference.reclaim_orders(INFERENCE_CLUSTER) if row["returned_at"]]
        found = self.person.deployments.get(self.deployment)
        samples = self.person.deployments.samples(self.deployment, limit=round(len(seconds) / 5))
        measured = [row["latency_seconds"]["p95"] for row in samples if row["requests"]]
        return Figures(
            requests=total.sent,
            failed=total.failed,
            retried=total.retried,
            skipped=total.skipped,
            sent_late=total.late,
            p50_seconds=total.percentile(0.5),
            p95_seconds=total.percentile(0.95),
            share_within_target=share_within(windows(seconds)),
            share_within_target_on_servers=share_within(measured),
            loans=len(inference.loan_orders(INFERENCE_CLUSTER)),
            returns=len(back),
            seconds_to_return=[order["seconds_to_return"] for order in back],
            returned_on_time=all(order["on_time"] for order in back),
            generation_served=found["generations"][-1]["state"] == "current",
            promise=promise,
        )


def windows(seconds: Sequence[Outcomes]) -> list[float | None]:
    """Return the 95th percentile of each window that had answers."""
    found = []
    for first in range(0, len(seconds), WINDOW_SECONDS):
        window = Outcomes()
        for second in seconds[first : first + WINDOW_SECONDS]:
            window.add(second)
        if window.sent:
            found.append(window.percentile(0.95))
    return found


def share_within(percentiles: Sequence[float | None]) -> float:
    """Return the share of the percentiles that meet the target; a window without an answer does not."""
    met = sum(value is not None and value <= TARGET_SECONDS for value in percentiles)
    return met / len(percentiles) if percentiles else 0.0


def main() -> None:
    """Run the day on a platform of its own and print its figures."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = options.parse_args()
    data = Path(tempfile.mkdtemp(prefix="punctual-day-"))
    platform = Platform(
        PlatformSettings(
            data=data, first_port=18800, first_worker_port=27000, agents=1, slots=2, warm_workers=1,
            examples=False, inference_agents=SERVERS, inference_usage=DEPLOYMENTS_USAGE,
            inference_period_seconds=PERIOD_SECONDS, worker_ports=100, environment=QUICK_PERIODS,
        )
    )  # fmt: skip
    try:
        platform.start()
        person, operator = clients(platform)
        operator.inference.change(INFERENCE_CLUSTER, minimum_hold_seconds=HOLD_SECONDS)
        found = Day(platform, person, operator, deploy(person)).run(60.0 * chosen.minutes)
    finally:
        platform.stop()
        platform.remove_sockets()
        shutil.rmtree(data, ignore_errors=True)
    for name, value in asdict(found).items():
        print(f"{name.replace('_', ' ')}: {value}")
    if chosen.json:
        chosen.json.write_text(json.dumps(asdict(found), indent=1))


if __name__ == "__main__":
    main()
