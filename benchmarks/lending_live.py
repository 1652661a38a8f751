"""Lending on a running platform through a rising day: servers missing with forecasts and headroom, and
without.

    python -m benchmarks.lending_live [--quick] [--setting NAME ...] [--servers 16] [--json OUT]

Starts a whole platform of its own. Its inference cluster reports a fortnight of the synthetic daily curve,
the network learns from that in its own queue, and the emulated inference scheduler, a process of its own,
serves the fifteenth day from one o'clock until usage is highest, five minutes of the curve in one period of a
few seconds, while best-effort jobs train on what is lent. The same hours pass once with each setting. The
margin is the one that `benchmarks/forecaster.py` asks for: what covers 99.9 % of the network's errors on the
last five days before, which it did not learn from.

A reclaim counts as ahead where usage as measured last asked for no server back when it was ordered
(`ReclaimTiming`). A server is missing where the requests of some moment of a period need more servers than
are at home: what the emulated scheduler sees, which is at least what the mean of the period says.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg2

from benchmarks.forecaster import COVERED
from launch import Platform, PlatformSettings
from launch.agents import INFERENCE_CLUSTER
from launch.credentials import Credentials
from launch.folders import PROJECT
from launch.waiting import wait_until
from lending.core.lending_rule import HEADROOM_FRACTION, HYSTERESIS_FRACTION, LendingRule
from lending.forecasting.evaluation import forecast_errors, margin_covering
from lending.forecasting.forecaster import SAMPLES_PER_DAY
from lending.forecasting.registry import make_forecaster
from lending.forecasting.rolling import LONGEST_HISTORY
from punctual.client import Client
from simulation.inference.catalogue import read_usage
from simulation.inference.usage import FloatArray

CURVE, SEED = "daily", 1
LIVE_DAY = 14
"""The curve's day that is served; those before it are learned from."""
HOURS, QUICK_HOURS = (13.0, 20.2), (16.5, 20.2)
PERIOD_SECONDS = 5.0
SERVERS, OWNED_SERVERS, JOBS = 16, 2, 4
LARGEST_REPORT = 2000
NETWORK, LAST_SAMPLE = "lstm", "persistence"


@dataclass(frozen=True)
class Setting:
    """One way to lend. ``uses_margin``: add to forecasts what covers nearly all of their errors.

    ``hold_periods``: the least time of a server on loan and at home, in periods; with the hysteresis as a
    demo has it.
    """

    forecaster: str
    headroom_fraction: float
    uses_forecast: bool = True
    uses_margin: bool = False
    hysteresis_fraction: float = HYSTERESIS_FRACTION
    hold_periods: int = 6


SETTINGS: dict[str, Setting] = {
    "forecast, margin, headroom": Setting(NETWORK, HEADROOM_FRACTION, uses_margin=True),
    "headroom": Setting(LAST_SAMPLE, HEADROOM_FRACTION),
    "neither": Setting(LAST_SAMPLE, 0.0, uses_forecast=False),
    "forecast, margin": Setting(NETWORK, 0.0, uses_margin=True),
    "forecast, headroom": Setting(NETWORK, HEADROOM_FRACTION),
}
USUAL_SETTINGS = ("forecast, margin, headroom", "headroom", "neither")


@dataclass(frozen=True)
class Figures:
    """What one run came to. Seconds and hours are the platform's own, not the curve's.

    ``short_periods``: with a server missing at some moment; ``missing_servers``: the most of each period,
    added up; ``short_by_mean``: periods whose mean usage takes more servers than were at home at their end.
    ``ahead_and_needed``: of the reclaims ahead of usage, those for which the next sample alone would have
    asked. ``seconds_to_return``: from the choice of an order's servers until the last was home;
    ``late_returns`` took longer than a period.
    """

    periods: int
    short_periods: int
    missing_servers: int
    missing_at_worst: int
    short_by_mean: int
    forecasts_by: Mapping[str, int]
    forecast_error: float
    last_sample_error: float
    loans: int
    servers_lent: int
    reclaims: int
    servers_reclaimed: int
    reclaims_ahead: int
    ahead_and_needed: int
    seconds_to_return_mean: float | None
    seconds_to_return_worst: float | None
    late_returns: int
    jobs_preempted: int
    jobs_rescaled: int
    server_hours_lent: float
    server_hours_used: float

    @property
    def share_ahead(self) -> float | None:
        """Share of reclaims that were ordered before usage rose; None without a reclaim."""
        return self.reclaims_ahead / self.reclaims if self.reclaims else None


Span = tuple[datetime, datetime]


def union_seconds(spans: Sequence[Span], since: datetime, until: datetime) -> float:
    """Seconds between ``since`` and ``until`` that lie in at least one span."""
    total, covered_until = 0.0, since
    for begin, end in sorted(spans):
        begin, end = max(begin, covered_until), min(end, until)
        if end > begin:
            total += (end - begin).total_seconds()
            covered_until = end
    return total


def lent_seconds(changes: Sequence[tuple[datetime, int]], since: datetime, until: datetime) -> float:
    """Server-seconds away from home between two times, of changes in the number that is away, oldest
    first."""
    total = 0.0
    for position, (begin, away) in enumerate(changes):
        end = changes[position + 1][0] if position + 1 < len(changes) else until
        total += away * max(0.0, (min(end, until) - max(begin, since)).total_seconds())
    return total


class Scene:
    """The platform with everybody who asks something of it."""

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
        """What was expected of the periods that ended later, by their ends."""
        found = self.rows(
            "select period_ends_at, usage, forecaster from lending_usageforecast where period_ends_at > %s",
            since,
        )
        return {ends_at: {"forecast": usage, "forecaster": name} for ends_at, usage, name in found}

    def work_on_loan(self, since: datetime) -> list[list[Span]]:
        """When inference servers held training work that had not ended before ``since``, a list for each
        server."""
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
        """Report the curve's fortnight before its sample ``first``, as if it had just passed."""
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
        """Have the network trained in its queue and wait for it."""
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
        """What covers nearly all errors of the network on the five days before ``first``, learned from those
        before them."""
        found = forecast_errors(self.usage[:first], [make_forecaster(NETWORK)])
        return margin_covering(found.forecasts[NETWORK], found.truth, COVERED)

    def bring_home(self) -> None:
        """Ask everything back and wait until it is there."""
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
    """The emulated inference scheduler as a process of its own."""
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


def run(scene: Scene, setting: Setting, hours: tuple[float, float], margin: float) -> dict[str, Any]:
    """Serve these hours of the live day with one setting. Returns its figures and, by period, what
    happened."""
    first = round((LIVE_DAY + hours[0] / 24) * SAMPLES_PER_DAY)
    periods = round((hours[1] - hours[0]) / 24 * SAMPLES_PER_DAY)
    scene.operator.inference.change(
        INFERENCE_CLUSTER, forecaster=setting.forecaster, headroom_fraction=setting.headroom_fraction,
        forecast_margin_fraction=margin if setting.uses_margin else 0.0,
        hysteresis_fraction=setting.hysteresis_fraction,
        minimum_hold_seconds=setting.hold_periods * scene.period.total_seconds(),
    )  # fmt: skip
    scene.report_past(first)
    past_until = _moment(scene.scheduler.inference.usage(INFERENCE_CLUSTER, limit=1)[0]["period_ends_at"])

    def served() -> list[dict[str, Any]]:
        newest = scene.scheduler.inference.usage(INFERENCE_CLUSTER, limit=periods + 5)
        return [dict(row) for row in reversed(newest) if _moment(row["period_ends_at"]) > past_until]

    with emulator(scene, setting, LIVE_DAY * 24 + hours[0]):
        wait_until(
            lambda: len(served()) >= periods,
            timeout_seconds=60 + 2 * periods * scene.period.total_seconds(),
            interval_seconds=1.0,
        )
    samples = served()[:periods]
    if len(samples) < periods:
        raise SystemExit(f"only {len(samples)} of {periods} periods were reported")
    found = figures(scene, samples, LendingRule(scene.servers, setting.headroom_fraction))
    scene.bring_home()
    return {
        "setting": asdict(setting),
        "figures": asdict(found),
        "share_ahead": found.share_ahead,
        "periods": samples,
    }


def figures(scene: Scene, samples: Sequence[dict[str, Any]], rule: LendingRule) -> Figures:
    """What happened over the periods of these samples, by the platform's rows. Adds its forecast to each
    sample."""
    inference = scene.operator.inference
    since = _moment(samples[0]["period_ends_at"]) - scene.period
    until = _moment(samples[-1]["period_ends_at"])
    forecasts = scene.forecasts(since)
    for sample in samples:
        sample |= forecasts.get(_moment(sample["period_ends_at"]), {})
    loans, reclaims = (
        [
            order
            for order in orders(INFERENCE_CLUSTER, limit=500)
            # What this benchmark asked back by hand before the run is no figure of it.
            if order["source"] == "scheduler" and since <= _moment(order["created_at"]) < until
        ]
        for orders in (inference.loan_orders, inference.reclaim_orders)
    )
    loans = [order for order in loans if order["state"] == "done"]
    events = sorted(inference.events(INFERENCE_CLUSTER), key=lambda event: _moment(event["happened_at"]))
    usage = [float(sample["usage"]) for sample in samples]
    known = [sample for sample in samples[1:] if sample.get("forecast") is not None]
    missing = [int(sample["seen_shortfall_servers"] or 0) for sample in samples]
    seconds = [order["seconds_to_return"] for order in reclaims if order["seconds_to_return"] is not None]
    ahead = [order for order in reclaims if order["ahead_of_usage"]]
    return Figures(
        periods=len(samples),
        short_periods=sum(count > 0 for count in missing),
        missing_servers=sum(missing),
        missing_at_worst=max(missing),
        short_by_mean=sum(sample["shortfall_servers"] > 0 for sample in samples),
        forecasts_by=dict(Counter(str(sample["forecaster"]) for sample in known)),
        forecast_error=statistics.fmean([(sample["forecast"] - sample["usage"]) ** 2 for sample in known]),
        last_sample_error=statistics.fmean([(after - before) ** 2 for before, after in pairwise(usage)]),
        loans=len(loans),
        servers_lent=sum(len(order["servers"]) for order in loans),
        reclaims=len(reclaims),
        servers_reclaimed=sum(order["count"] for order in reclaims),
        reclaims_ahead=len(ahead),
        ahead_and_needed=sum(was_needed(order, samples, events, rule) for order in ahead),
        seconds_to_return_mean=_mean(seconds),
        seconds_to_return_worst=max(seconds, default=None),
        late_returns=sum(value > scene.period.total_seconds() for value in seconds),
        jobs_preempted=sum(order["preempted_jobs"] or 0 for order in reclaims),
        jobs_rescaled=sum(order["rescaled_jobs"] or 0 for order in reclaims),
        server_hours_lent=lent_seconds(away_from_home(events), since, until) / 3600,
        server_hours_used=sum(union_seconds(spans, since, until) for spans in scene.work_on_loan(since))
        / 3600,
    )


def was_needed(
    order: Mapping[str, Any],
    samples: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    rule: LendingRule,
) -> bool:
    """Whether the sample of the period in which the order was given asks for servers by itself."""
    at = _moment(order["created_at"])
    on_loan = [event["on_loan"] for event in events if _moment(event["happened_at"]) < at]
    following = [sample["usage"] for sample in samples if _moment(sample["period_ends_at"]) > at]
    return bool(on_loan and following and rule.target(following[0]) < on_loan[-1])


def away_from_home(events: Sequence[Mapping[str, Any]]) -> list[tuple[datetime, int]]:
    """How many servers are away, from each event on."""
    return [(_moment(event["happened_at"]), event["on_loan"] + event["reclaiming"]) for event in events]


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def print_run(name: str, found: Figures) -> None:
    """The figures of one setting for people."""
    share = "none" if found.share_ahead is None else f"{found.share_ahead:.0%}"
    print(
        f"{name}: {found.periods} periods, {found.short_periods} short by {found.missing_servers} servers in "
        f"all, "
        f"{found.missing_at_worst} at worst ({found.short_by_mean} by the period's mean)\n"
        f"    lent {found.servers_lent} servers in {found.loans} orders, {found.reclaims} reclaims of "
        f"{found.servers_reclaimed}, "
        f"ahead of usage {share} ({found.reclaims_ahead}, of which {found.ahead_and_needed} needed at once)\n"
        f"    home after {_seconds(found.seconds_to_return_mean)} on average, "
        f"{_seconds(found.seconds_to_return_worst)} at worst, "
        f"{found.late_returns} after more than a period; jobs preempted {found.jobs_preempted}, rescaled "
        f"{found.jobs_rescaled}\n"
        f"    server-hours lent {found.server_hours_lent:.3f}, used {found.server_hours_used:.3f}; "
        f"forecasts by {dict(found.forecasts_by)}, "
        f"error {found.forecast_error:.5f}, of the last sample {found.last_sample_error:.5f}",
        flush=True,
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def main() -> None:
    """Run every setting on one platform and print what came of it."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    options.add_argument("--quick", action="store_true", help="fewer hours of the day")
    options.add_argument(
        "--setting", action="append", choices=list(SETTINGS), help="instead of the usual three"
    )
    options.add_argument("--servers", type=int, default=SERVERS, help="emulated inference servers")
    options.add_argument("--period-seconds", type=float, default=PERIOD_SECONDS)
    options.add_argument("--seed", type=int, default=SEED, help="of the curve's noise")
    options.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = options.parse_args()
    data = Path(tempfile.mkdtemp(prefix="punctual-benchmark-"))
    platform = Platform(
        PlatformSettings(
            data=data, first_port=18600, first_worker_port=26000, agents=OWNED_SERVERS, slots=1,
            warm_workers=1,
            examples=False, inference_agents=chosen.servers, inference_usage=None,
            inference_period_seconds=chosen.period_seconds, worker_ports=100,
        )
    )  # fmt: skip
    try:
        platform.start()
        scene = Scene(platform, chosen.servers, chosen.period_seconds, chosen.seed)
        results = measure(scene, QUICK_HOURS if chosen.quick else HOURS, chosen.setting or USUAL_SETTINGS)
    finally:
        platform.stop()
        platform.remove_sockets()
        shutil.rmtree(data, ignore_errors=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1, default=str))


def measure(scene: Scene, hours: tuple[float, float], names: Sequence[str]) -> dict[str, Any]:
    """All settings, one after another over the same hours."""
    first = round((LIVE_DAY + hours[0] / 24) * SAMPLES_PER_DAY)
    scene.report_past(first)
    training, margin = scene.train(), scene.margin(first)
    print(
        f"{scene.servers} inference servers, periods of {scene.period.total_seconds():g} s, {scene.curve} "
        f"curve with seed {scene.seed} from {hours[0]:g} to {hours[1]:g} o'clock; the network's error "
        f"{training['mean_squared_error']:.5f}, of the last sample {training['persistence_error']:.5f}; "
        f"margin {margin:.3f}",
        flush=True,
    )
    jobs = start_training(scene.platform)
    runs = {}
    for name in names:
        runs[name] = run(scene, SETTINGS[name], hours, margin)
        print_run(name, Figures(**runs[name]["figures"]))
    progress = [(job.refresh().state, job.iterations_done) for job in jobs]
    print(f"jobs at the end: {progress}")
    return {
        "servers": scene.servers,
        "hours": hours,
        "margin": margin,
        "training": training,
        "runs": runs,
        "jobs": progress,
    }


if __name__ == "__main__":
    main()
