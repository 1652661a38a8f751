"""A platform that lends on a running day: its settings, and its clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2

from benchmarks.lending.forecaster import COVERED
from launch import Platform
from launch.agents import INFERENCE_CLUSTER
from launch.credentials import Credentials
from launch.folders import PROJECT
from launch.waiting import wait_until
from lending.core.lending_rule import HYSTERESIS_FRACTION
from lending.forecasting.evaluation import forecast_errors, margin_covering
from lending.forecasting.registry import make_forecaster
from lending.forecasting.sampling import LONGEST_HISTORY
from punctual.client import Client
from simulation.inference.catalogue import read_usage
from simulation.inference.usage import FloatArray

CURVE = "daily"
JOBS = 4
LARGEST_REPORT = 2000
NETWORK = "lstm"

Span = tuple[datetime, datetime]


@dataclass(frozen=True)
class Setting:
    """One way to lend. ``uses_margin``: add to forecasts a margin that covers nearly all of their errors.

    ``hold_periods``: the minimum time of a server on loan and at home, in periods; with the hysteresis of a
    demo.
    """

    forecaster: str
    headroom_fraction: float
    uses_forecast: bool = True
    uses_margin: bool = False
    hysteresis_fraction: float = HYSTERESIS_FRACTION
    hold_periods: int = 6


class Scene:
    """The platform with all of its clients."""

    def __init__(
        self, platform: Platform, servers: int, period_seconds: float, seed: int, curve: str = CURVE
    ) -> None:
        self.platform = platform
        self.servers = servers
        self.period = timedelta(seconds=period_seconds)
        self.seed = seed
        self.curve = curve
        series = read_usage(curve, seed=seed)
        self.usage: FloatArray = series.usage
        self.usage_source = f"emulated: {series.source}"
        self.operator = Client(platform.web_url, _token(platform, platform.operator_login))
        self.credential = Credentials.load(platform.folders.secrets).inference_credential
        self.scheduler = Client(platform.web_url, self.credential)

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Read the platform's database."""
        url = self.platform.database_url.replace("postgres://", "postgresql://", 1)
        connection = psycopg2.connect(url)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(sql, parameters)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def forecasts(self, since: datetime) -> dict[datetime, dict[str, Any]]:
        """Return the forecasts for periods that ended later, by their ends."""
        found = self.rows(
            "select period_ends_at, usage, forecaster from lending_usageforecast where period_ends_at > %s",
            since,
        )
        return {ends_at: {"forecast": usage, "forecaster": name} for ends_at, usage, name in found}

    def work_on_loan(self, since: datetime) -> list[list[Span]]:
        """Return when inference servers held training work that had not ended before ``since``, a list for
        each server."""
        found = self.rows(
            "select s.id, a.held_at, coalesce(a.released_at, now()) from scheduling_assignment a join "
            "cluster_gpu g on g.id = a.gpu_id join cluster_server s on s.id = g.server_id where "
            "s.inference_cluster_id is not null and a.held_at is not null and (a.released_at is null or "
            "a.released_at > %s)",
            since,
        )
        spans: dict[int, list[Span]] = {}
        for server, begin, end in found:
            spans.setdefault(server, []).append((begin, end))
        return list(spans.values())

    def report_past(self, first: int) -> None:
        """Report the curve's two weeks before its sample ``first``, as if they had just passed."""
        seconds = self.period.total_seconds()
        newest = datetime.fromtimestamp(time.time() // seconds * seconds, tz=UTC)
        past = self.usage[max(0, first - LONGEST_HISTORY) : first]
        samples = [
            {
                "period_ends_at": (newest - self.period * (past.size - 1 - row)).isoformat(),
                "usage": float(value),
                "source": self.usage_source,
            }
            for row, value in enumerate(past)
        ]
        for begin in range(0, len(samples), LARGEST_REPORT):
            self.scheduler.inference.report_usage(INFERENCE_CLUSTER, samples[begin : begin + LARGEST_REPORT])

    def train(self) -> dict[str, Any]:
        """Train the network in its queue and wait for it."""
        inference = self.operator.inference
        inference.train(INFERENCE_CLUSTER, NETWORK)
        wait_until(
            lambda: inference.trainings(INFERENCE_CLUSTER, limit=1)[0]["finished_at"] is not None,
            timeout_seconds=600,
            interval_seconds=1.0,
        )
        training = dict(inference.trainings(INFERENCE_CLUSTER, limit=1)[0])
        if training["state"] != "done":
            raise SystemExit(f"the network was not trained: {training}")
        return training

    def margin(self, first: int) -> float:
        """Return what covers nearly all errors of the network on the five days before ``first``, trained on
        those before them."""
        found = forecast_errors(self.usage[:first], [make_forecaster(NETWORK)])
        return margin_covering(found.forecasts[NETWORK], found.truth, COVERED)

    def bring_home(self) -> None:
        """Reclaim all servers and wait until they are home."""
        inference = self.operator.inference
        inference.ask_back(INFERENCE_CLUSTER, str(uuid.uuid4()), self.servers)
        at_home = wait_until(
            lambda: {row["lending_state"] for row in inference.servers(INFERENCE_CLUSTER)} == {"inference"},
            timeout_seconds=180,
            interval_seconds=0.5,
        )
        if not at_home:
            raise SystemExit("servers did not come home within three minutes")


def _token(platform: Platform, login: tuple[str, str]) -> str:
    return Client(platform.web_url, token="").login(*login)


def start_training(platform: Platform) -> list[Any]:
    """Measure the example once and submit best-effort jobs that train until the end."""
    person = Client(platform.web_url, _token(platform, platform.demo_login))
    example = PROJECT / "examples/image_classifier.py"
    person.submit(example, batch_size=64, max_iterations=5).wait(timeout_seconds=400)
    return [
        person.submit(
            example, name=f"long {number}", batch_size=64, max_iterations=1_000_000, seed=number,
            checkpoint_seconds=10.0,
        )
        for number in range(JOBS)
    ]  # fmt: skip


@contextmanager
def emulator(scene: Scene, setting: Setting, start_hour: float) -> Iterator[None]:
    """Run the emulated inference scheduler in its own process."""
    command = [
        sys.executable, "-m", "workers.inference_emulator", "--usage", scene.curve, "--seed", str(scene.seed),
        "--start-hour", str(start_hour), "--uses-forecast" if setting.uses_forecast else "--no-uses-forecast",
    ]  # fmt: skip
    environment = os.environ | {
        "PUNCTUAL_URL": scene.platform.web_url,
        "PUNCTUAL_INFERENCE_TOKEN": scene.credential,
    }
    with (scene.platform.folders.logs / "benchmark-emulator.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=log, stderr=log)
    try:
        yield
        if process.poll() is not None:
            raise SystemExit(f"the emulator ended by itself: {log.name}")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
