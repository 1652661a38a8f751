"""Time to a verdict, submissions per second, and time from a decision to training.

    python -m benchmarks.scheduling.submissions [--json OUT]

Starts its own platform (one node agent with four emulated GPUs), measures a function once so that its curve
is known, and then submits over REST as a user would. The peer for submissions is the same Django stack that
only inserts the row (benchmarks/peers/insert_only.py), served with the same number of processes and threads
and used by the same client alternately in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg2

from launch import Platform, PlatformSettings
from launch.folders import PROJECT
from launch.ports import choose_ranges
from launch.waiting import wait_until
from punctual.client import Client

VERDICTS = 40
ROUNDS = 3
SUBMISSIONS_PER_ROUND = 100
CLIENTS = 8
STARTS = 5


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    options.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = options.parse_args()
    data = Path(tempfile.mkdtemp(prefix="punctual-benchmark-"))
    settings = PlatformSettings(
        data=data, first_port=18400, first_worker_port=23000, agents=1, examples=False, warm_workers=4,
        environment={"SLOT_SECONDS": "2", "REPORT_SECONDS": "0.5", "THROTTLE_SUBMISSIONS": "100000/min"},
    )  # fmt: skip
    platform = Platform(settings)
    try:
        platform.start()
        figures = measure(platform)
    finally:
        platform.stop()
        platform.remove_sockets()
        shutil.rmtree(data, ignore_errors=True)
    print_table(figures)
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


def measure(platform: Platform) -> dict[str, Any]:
    """Return all figures of one run."""
    token = Client(platform.web_url, token="").login(*platform.demo_login)
    person = Client(platform.web_url, token)
    known = person.submit(PROJECT / "examples/image_classifier.py", batch_size=64, max_iterations=5)
    known.wait(timeout_seconds=300)
    reference = known.raw["function"]
    function = f"{reference['name']}@{reference['version']}"
    web = httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=60.0, trust_env=False)
    body = {
        "project": person.project_name(),
        "function": function,
        "name": "benchmark",
        "hyperparameters": {"global_batch_size": 64},
        "termination": {"max_iterations": 50},
        "service_class": "best_effort",
    }
    url = f"{platform.web_url}/api/v1/jobs/"
    verdicts = [verdict_seconds(web, url, body) for _ in range(VERDICTS)]
    starts = start_seconds(platform, web, url, body)
    with insert_only(platform) as peer:
        rates: dict[str, list[float]] = {"submissions": [], "inserts": []}
        for _ in range(ROUNDS):
            rates["inserts"].append(rate(web, peer, body))
            rates["submissions"].append(rate(web, url, body))
    return {
        "verdict_ms_p50": 1000 * statistics.median(verdicts),
        "verdict_ms_p95": 1000 * sorted(verdicts)[int(0.95 * len(verdicts))],
        "decision_to_first_iteration_s_p50": statistics.median(starts),
        "submissions_per_second": statistics.median(rates["submissions"]),
        "inserts_per_second": statistics.median(rates["inserts"]),
        "submissions_per_insert": statistics.median(rates["submissions"])
        / statistics.median(rates["inserts"]),
        "clients": CLIENTS,
    }


def verdict_seconds(web: httpx.Client, url: str, body: dict[str, Any]) -> float:
    """Return the time from sending a promised-deadline job to its verdict, then cancel it."""
    asked = {**body, "service_class": "slo", "deadline_seconds": 7200}
    began = time.perf_counter()
    answer = web.post(url, params={"wait": 20}, json=asked)
    seconds = time.perf_counter() - began
    answer.raise_for_status()
    job = answer.json()
    if job["verdict"]["decision"] == "pending":
        raise SystemExit(f"no verdict within 20 s: {job['verdict']}")
    web.post(f"{url}{job['id']}/cancel/", json={}).raise_for_status()
    return seconds


def start_seconds(platform: Platform, web: httpx.Client, url: str, body: dict[str, Any]) -> list[float]:
    """Return times from verdicts to the end of first iterations, by the control plane's clock."""
    found = []
    for _ in range(STARTS):
        job = web.post(url, params={"wait": 20}, json={**body, "termination": {"max_iterations": 3}}).json()

        def finished(address: str = f"{url}{job['id']}/") -> bool:
            return str(web.get(address).json()["state"]) == "completed"

        wait_until(finished, timeout_seconds=120)
        with psycopg2.connect(platform.database_url.replace("postgres://", "postgresql://", 1)) as connection:
            cursor = connection.cursor()
            cursor.execute(
                "select extract(epoch from min(g.live_at) - min(j.decided_at)) from scheduling_generation g "
                "join scheduling_job j on j.id = g.job_id where j.id = %s and g.purpose = 'training'",
                [job["id"]],
            )
            (seconds,) = cursor.fetchone() or (None,)
            found.append(float(seconds))
    return found


def rate(web: httpx.Client, url: str, body: dict[str, Any]) -> float:
    """Return the requests per second answered with 201, from as many clients as there are server threads."""

    def post(_: int) -> None:
        web.post(url, json=body).raise_for_status()

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(post, range(SUBMISSIONS_PER_ROUND)))
    return SUBMISSIONS_PER_ROUND / (time.perf_counter() - began)


@contextmanager
def insert_only(platform: Platform) -> Iterator[str]:
    """Serve the peer as the web server is served. Yields its address."""
    ((port, _),) = choose_ranges("127.0.0.1", 1, 24000, 10)
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "benchmarks.peers.insert_only",
        "DATABASE_URL": platform.database_url,
        "REDIS_URL": platform.redis_url,
        "PUNCTUAL_DATA": str(platform.settings.data),
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "config.wsgi:application", "-k", "gthread", "-w", "2", "--threads",
        "4",
         "--no-control-socket", "--bind", f"127.0.0.1:{port}", "--log-level", "error"],
        cwd=PROJECT,
        env=environment,
    )  # fmt: skip
    try:
        wait_until(_listens(port), timeout_seconds=60)
        yield f"http://127.0.0.1:{port}/insert/"
    finally:
        server.terminate()
        server.wait(20)


def _listens(port: int) -> Callable[[], bool]:
    def listens() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/insert/", trust_env=False).status_code < 500
        except httpx.HTTPError:
            return False

    return listens


def print_table(figures: dict[str, Any]) -> None:
    """Print the figures."""
    print(
        f"verdict on a known curve        median {figures['verdict_ms_p50']:.0f} ms, 95 % "
        f"{figures['verdict_ms_p95']:.0f} ms"
    )
    print(
        f"decision to first iteration     median {figures['decision_to_first_iteration_s_p50']:.2f} s (warm "
        f"workers)"
    )
    print(
        f"submissions a second            {figures['submissions_per_second']:.0f}, insert alone "
        f"{figures['inserts_per_second']:.0f}: {figures['submissions_per_insert']:.2f} of it, {CLIENTS} "
        f"clients"
    )


if __name__ == "__main__":
    main()
