"""Starts a throwaway PostgreSQL and Valkey before Django reads its settings, and ends them with the test run.

Named by `-p` in pyproject.toml: pytest-django imports the settings in `pytest_load_initial_conftests`, so a
conftest would come too late. `PUNCTUAL_TEST_DATABASE_URL` and `PUNCTUAL_TEST_REDIS_URL` name servers to use
instead. `DATABASE_URL` is deliberately not read: tests must never reach a database in use.

Under pytest-xdist each worker process has its own servers; the controller runs no tests. The databases are
copies of one with all migrations applied, which is kept in the user's cache (`migrated_cluster.py`).
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from launch.postgresql import USER, EmbeddedPostgres
from launch.privileges import child_setup, unprivileged_identity
from launch.valkey import EmbeddedValkey
from launch.waiting import wait_until
from tests.plugins.migrated_cluster import copy_migrated_cluster, keep_migrated_cluster

SECRET_KEY = "only-for-tests-0123456789-0123456789-0123456789-0123456789"

#: The database that test databases are copies of; None if they are created empty.
template: str | None = None
_folder: Path | None = None
_servers: list[tuple[subprocess.Popen[bytes], signal.Signals]] = []


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Start the servers that are not given, and set their addresses for Django."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if is_worker:
        # There are as many workers as cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not is_worker:
        # A short path, because sockets are below it; and not the folder that pytest closes to other users.
        args.insert(0, f"--basetemp={_make_folder() / 't'}")
    os.environ.setdefault("SECRET_KEY", SECRET_KEY)
    database_url = os.environ.get("PUNCTUAL_TEST_DATABASE_URL")
    redis_url = os.environ.get("PUNCTUAL_TEST_REDIS_URL")
    if database_url is None and not is_worker:
        keep_migrated_cluster(start_postgresql, _end_servers)
    if not is_worker and getattr(early_config.known_args_namespace, "numprocesses", None):
        # The controller only collects results and needs no server, but the settings need addresses.
        os.environ |= {
            "DATABASE_URL": "postgres://nobody@127.0.0.1:1/none",
            "REDIS_URL": "redis://127.0.0.1:1/0",
        }
        return
    if database_url is None or redis_url is None:
        folder = _make_folder()
        database_url = database_url or _own_postgresql(folder)
        redis_url = redis_url or _start_valkey(folder)
    # Processes that a test starts need the addresses too.
    os.environ["PUNCTUAL_TEST_DATABASE_URL"] = os.environ["DATABASE_URL"] = database_url
    os.environ["PUNCTUAL_TEST_REDIS_URL"] = os.environ["REDIS_URL"] = redis_url
    if _folder is not None:
        (_folder / "data" / "static").mkdir(parents=True)
        os.environ["PUNCTUAL_DATA"] = str(_folder / "data")


def pytest_unconfigure() -> None:
    """End the servers; `atexit` covers runs that end earlier, and the kernel those that are killed."""
    stop_servers()


def _make_folder() -> Path:
    """Make the folder of this process, which is removed with it."""
    global _folder
    if _folder is not None:
        return _folder
    _folder = Path(tempfile.mkdtemp(prefix="pt-"))
    _folder.chmod(0o711)
    atexit.register(stop_servers)
    return _folder


def _own_postgresql(folder: Path) -> str:
    global template
    copy_migrated_cluster(folder)
    template = USER
    return start_postgresql(folder)


def start_postgresql(folder: Path) -> str:
    """Serve the cluster in `folder/postgresql`, which is created if missing. Return its address."""
    identity = unprivileged_identity()
    if identity.user_id is not None:
        folder.chmod(0o711)
    server = EmbeddedPostgres(folder / "postgresql", folder / "sql", identity, durable=False)
    server.prepare()
    _start("PostgreSQL", server, folder)
    server.create_database()
    return server.url()


def _start_valkey(folder: Path) -> str:
    server = EmbeddedValkey(folder / "valkey", folder / "broker", durable=False)
    server.prepare()
    _start("Valkey", server, folder)
    return server.url()


def _start(name: str, server: EmbeddedPostgres | EmbeddedValkey, folder: Path) -> None:
    identity = server.identity if isinstance(server, EmbeddedPostgres) else None
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            server.command(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
            # Ctrl-C ends the test run, which ends the servers: they must not end first.
            start_new_session=True,
            preexec_fn=child_setup(server.stop_signal, identity=identity),
            **(identity.popen_arguments() if identity else {}),  # type: ignore[call-overload]
        )
    _servers.append((child, server.stop_signal))
    if not wait_until(lambda: server.is_ready() or child.poll() is not None, timeout_seconds=60):
        pytest.exit(f"{name} did not get ready for the tests", returncode=3)
    if child.poll() is not None:
        pytest.exit(f"{name} ended while starting:\n{log.read_text(errors='replace')[-2000:]}", returncode=3)


def stop_servers() -> None:
    """End what this plugin started, newest first, and remove its folder. Idempotent."""
    global _folder
    _end_servers()
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)
        _folder = None


def _end_servers() -> None:
    while _servers:
        child, stop_signal = _servers.pop()
        child.send_signal(stop_signal)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


if __name__ == "__main__":
    os.environ.setdefault("SECRET_KEY", SECRET_KEY)
    keep_migrated_cluster(start_postgresql, _end_servers)
