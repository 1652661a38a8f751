"""Clients of the shared running platform, and helpers to wait for it and to read its rows."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extras
import pytest

from launch import Platform
from punctual.client import Client, Job
from tests.plugins.migrated_cluster import copy_migrated_cluster
from tests.plugins.running_platform import quick_settings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GLOBAL_BATCH_SIZE = 64
#: Time between two polls: each poll also costs the platform an answer.
LOOK_SECONDS = 0.5


@pytest.fixture(scope="package")
def running_platform() -> Iterator[Platform]:
    """A running platform that these tests share: leave it unchanged. It starts at the first use and stops
    after the last."""
    yield from started_platform()


def started_platform(**changes: Any) -> Iterator[Platform]:
    """Run a platform with short periods and these settings, until the iterator is closed."""
    data = Path(tempfile.mkdtemp(prefix="punctual-platform-"))
    copy_migrated_cluster(data)
    platform = Platform(replace(quick_settings(data), **changes))
    try:
        platform.start()
        yield platform
    finally:
        platform.stop()
        platform.remove_sockets()
        shutil.rmtree(data, ignore_errors=True)


@pytest.fixture(scope="package")
def person(running_platform: Platform) -> Iterator[Client]:
    """The demo user."""
    with logged_in(running_platform, *running_platform.demo_login) as client:
        yield client


@pytest.fixture(scope="package")
def operator(running_platform: Platform) -> Iterator[Client]:
    """The operator."""
    with logged_in(running_platform, *running_platform.operator_login) as client:
        yield client


def logged_in(platform: Platform, username: str, password: str) -> Client:
    """Return a client of a person. Modules with their own platform also make their own clients, since those
    of the package belong to the shared platform."""
    with Client(platform.web_url, token="") as anonymous:
        token = anonymous.login(username, password)
    # A killed web server is back within seconds; submissions are repeated under their idempotency key.
    return Client(platform.web_url, token, retry_seconds=60.0)


@pytest.fixture(scope="package")
def rows(running_platform: Platform) -> Callable[..., list[dict[str, Any]]]:
    """Read the platform's database directly, for invariants of the rows themselves."""
    return rows_of(running_platform)


def rows_of(platform: Platform) -> Callable[..., list[dict[str, Any]]]:
    """Return a function that queries a platform's database."""

    def query(sql: str, *parameters: Any) -> list[dict[str, Any]]:
        connection = psycopg2.connect(_plain(platform.database_url))
        try:
            with connection, connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
                cursor.execute(sql, parameters)
                return [dict(row) for row in cursor.fetchall()]
        finally:
            connection.close()

    return query


def _plain(url: str) -> str:
    return url.replace("postgres://", "postgresql://", 1)


def wait_until(condition: Callable[[], Any], what: str, *, seconds: float) -> Any:
    """Return the condition's first true value; fail with ``what`` after ``seconds``."""
    ends_at = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > ends_at:
            pytest.fail(f"waited {seconds:.0f} s in vain for: {what}")
        time.sleep(LOOK_SECONDS)
    return answer


def wait_for(job: Job, condition: Callable[[Job], Any], what: str, *, seconds: float = 120.0) -> Job:
    """Return the job once the condition holds; fail with its history otherwise."""
    ends_at = time.monotonic() + seconds
    while not condition(job.refresh()):
        if time.monotonic() > ends_at or (job.finished and not condition(job)):
            history = "\n".join(
                f"{event.happened_at:%H:%M:%S} {event.kind}: {event.message}" for event in job.events()
            )
            pytest.fail(
                f"{job.name} ({job.id}) is {job.state} on {job.gpus} GPUs at {job.iterations_done}; wanted: "
                f"{what}\n{history}"
            )
        time.sleep(LOOK_SECONDS)
    return job


def nothing_is_wrong(rows: Callable[..., list[dict[str, Any]]]) -> None:
    """Check what must hold in the database at every moment, whichever process was killed."""
    twice_owned = rows(
        "select gpu_id from scheduling_assignment where state in ('held', 'clearing') group by gpu_id having "
        "count(distinct job_id) > 1"
    )
    assert not twice_owned, "a GPU has two owners"
    overlapping = rows(
        "select a.job_id, a.number, b.number from scheduling_generation a join scheduling_generation b on "
        "a.job_id = b.job_id and a.number < b.number and a.purpose = 'training' and b.purpose = 'training' "
        "where a.live_at is not null and b.live_at is not null and b.live_at < coalesce(a.retired_at, "
        "'infinity'::timestamptz)"
    )
    assert not overlapping, f"two generations trained at once: {overlapping}"
    stuck = rows(
        "select j.id from scheduling_job j join scheduling_assignment a on a.job_id = j.id where j.state in "
        "('completed', 'failed', 'cancelled', 'declined') and a.state in ('held', 'waiting')"
    )
    assert not stuck, "a finished job holds GPUs"
