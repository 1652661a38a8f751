"""The supervisor of `make run` with real servers: it starts, restarts, stops and resumes with the existing
data.

The tests share one platform without node agents and run in the order in which they stand.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import psycopg2
import pytest

from launch import Platform
from launch.folders import PROJECT
from launch.waiting import wait_until
from tests.plugins.running_platform import quick_settings

pytestmark = pytest.mark.live

FIRST_PORT = 18600


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    import dataclasses

    data = Path(tempfile.mkdtemp(prefix="punctual-supervisor-"))
    data.chmod(0o711)
    made = Platform(dataclasses.replace(quick_settings(data, first_port=FIRST_PORT), agents=0))
    with socket.socket() as somebody:
        somebody.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        somebody.bind(("127.0.0.1", FIRST_PORT))
        somebody.listen(1)
        made.start()
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(data, ignore_errors=True)


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    assert wait_until(condition, timeout_seconds=seconds, interval_seconds=0.1)


def execute(platform: Platform, statement: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(platform.database_url)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


_tokens: dict[str, str] = {}


def api_answers(platform: Platform) -> bool:
    """Return whether web server, database and log-in work. The token is reused, since log-in attempts are
    throttled."""
    name, password = platform.demo_login
    try:
        with httpx.Client(base_url=f"{platform.web_url}/api/v1/", timeout=5, trust_env=False) as client:
            if name not in _tokens:
                body = {"username": name, "password": password, "token_name": "test"}
                _tokens[name] = client.post("login/", json=body).raise_for_status().json()["token"]
            answer = client.get("me/", headers={"Authorization": f"Bearer {_tokens[name]}"})
    except httpx.HTTPError:
        return False
    return answer.status_code == 200


def everything_of(platform: Platform) -> list[psutil.Process]:
    processes = []
    for process in platform.processes.values():
        if process.pid is not None:
            parent = psutil.Process(process.pid)
            processes += [parent, *parent.children(recursive=True)]
    return processes


def test_a_taken_port_is_avoided_and_the_demo_user_can_log_in(platform):
    assert not platform.web_url.endswith(f":{FIRST_PORT}")
    # The first answers of a busy machine may take longer than one attempt waits.
    wait_for(lambda: api_answers(platform))


def test_only_its_owner_can_read_the_secrets_and_they_are_in_no_log(platform):
    secrets = [file.read_text().strip() for file in platform.folders.secrets.iterdir()]
    logs = "".join(log.read_text(errors="replace") for log in platform.folders.logs.iterdir())
    assert len(secrets) == 4, "the key of the web server, two people, and the emulated inference scheduler"
    assert not any(secret in logs for secret in secrets)
    assert platform.folders.secrets.stat().st_mode & 0o077 == 0


def test_a_second_start_on_the_same_data_is_refused(platform):
    second = subprocess.run(
        [sys.executable, "-m", "launch", "up", "--settings", str(platform.settings.data / "settings.json")],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 1
    assert "already runs" in second.stderr
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize("name", ["web", "agent-api", "streams", "celery-planner", "celery-control", "beat"])
def test_killed_processes_restart_and_leave_no_orphans(platform, name):
    before = platform.process(name)
    children = before.children
    before.kill()
    platform.wait_restarted(before)
    wait_for(lambda: not any(psutil.pid_exists(child) for child in children))
    if name == "web":
        wait_for(lambda: api_answers(platform))


def pool_of(platform: Platform) -> list[int]:
    """Return the usable children of the control queue's worker."""
    try:
        return [
            pid
            for pid in platform.process("celery-control").children
            if psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED)
        ]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_frozen_child_of_a_celery_worker_is_replaced(platform, number):
    """By its parent or, if that fails, together with its parent: afterwards the pool is complete and
    works."""
    wait_for(lambda: len(pool_of(platform)) == 2)
    lost = pool_of(platform)[0]
    os.kill(lost, number)
    wait_for(lambda: len(pool_of(platform)) == 2 and lost not in pool_of(platform))
    wait_for(lambda: not psutil.pid_exists(lost))
    (looked,) = execute(platform, "SELECT now()")[0]
    wait_for(
        lambda: bool(execute(platform, f"SELECT 1 FROM cluster_cluster WHERE leases_checked_at > '{looked}'"))
    )


def test_the_broker_may_be_killed(platform):
    before = platform.process("valkey")
    before.kill()
    platform.wait_restarted(before)
    wait_for(lambda: api_answers(platform))


def test_the_database_may_be_killed_and_keeps_what_was_committed(platform):
    execute(platform, "CREATE TABLE kept AS SELECT 7 AS number")
    before = platform.process("postgresql")
    before.kill()
    platform.wait_restarted(before)
    wait_for(lambda: api_answers(platform))
    assert execute(platform, "SELECT number FROM kept") == [(7,)]


def test_stopping_ends_all_processes_and_a_restart_keeps_the_data(platform):
    running = everything_of(platform)
    platform.stop()
    assert [process for process in running if process.is_running()] == []
    assert not platform.is_running
    platform.start()
    assert execute(platform, "SELECT number FROM kept") == [(7,)]
    wait_for(lambda: api_answers(platform))


def test_killing_the_supervisor_leaves_nothing_running(platform):
    running = everything_of(platform)
    platform.kill()
    wait_for(lambda: not any(process.is_running() and process.status() != "zombie" for process in running))
    log = (platform.folders.logs / "postgresql.log").read_text()
    assert log.rstrip().endswith("database system is shut down")
