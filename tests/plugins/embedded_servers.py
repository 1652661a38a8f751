"""Starts a throwaway PostgreSQL and Valkey before Django reads its settings, and ends them with the test run.

Named by `-p` in pyproject.toml: pytest-django imports the settings in `pytest_load_initial_conftests`, so a
conftest would come too late. `PUNCTUAL_TEST_DATABASE_URL` and `PUNCTUAL_TEST_REDIS_URL` name servers to use
instead. `DATABASE_URL` is deliberately not read: tests must never reach a database that somebody works with.

Under pytest-xdist each worker process has servers of its own. The controller runs no tests: it applies the
migrations once, to a cluster that the workers copy.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from launch.folders import PROJECT
from launch.postgresql import USER, EmbeddedPostgres
from launch.privileges import child_setup, unprivileged_identity
from launch.valkey import EmbeddedValkey
from launch.waiting import wait_until

#: Names a folder with a PostgreSQL cluster whose database has all migrations applied. Workers of pytest-xdist
#: and platforms under test copy it; applying the migrations takes ten times as long.
CLUSTER_VARIABLE = "PUNCTUAL_TEST_CLUSTER"

SECRET_KEY = "only-for-tests-0123456789-0123456789-0123456789-0123456789"

_template: str | None = None
_folder: Path | None = None
_servers: list[tuple[subprocess.Popen[bytes], signal.Signals]] = []


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Start what is not given, and tell Django where it is."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if not is_worker:
        # Short, for sockets lie below it; and not the folder that pytest closes to other users at each start.
        args.insert(0, f"--basetemp={_make_folder() / 't'}")
    if not is_worker and getattr(early_config.known_args_namespace, "numprocesses", None):
        _prepare_for_workers()
        return
    database_url = os.environ.get("PUNCTUAL_TEST_DATABASE_URL")
    redis_url = os.environ.get("PUNCTUAL_TEST_REDIS_URL")
    if database_url is None or redis_url is None:
        folder = _make_folder()
        database_url = database_url or _own_postgresql(folder)
        redis_url = redis_url or _start_valkey(folder)
    # For processes that a test starts as well.
    os.environ["PUNCTUAL_TEST_DATABASE_URL"] = os.environ["DATABASE_URL"] = database_url
    os.environ["PUNCTUAL_TEST_REDIS_URL"] = os.environ["REDIS_URL"] = redis_url
    os.environ.setdefault("SECRET_KEY", SECRET_KEY)
    if _folder is not None:
        (_folder / "data" / "static").mkdir(parents=True)
        os.environ["PUNCTUAL_DATA"] = str(_folder / "data")


def pytest_unconfigure() -> None:
    """End the servers; `atexit` covers runs that end earlier, and the kernel those that are killed."""
    stop_servers()


def _prepare_for_workers() -> None:
    """Make the cluster that workers copy. The controller itself only collects results: it needs no server."""
    os.environ.setdefault("SECRET_KEY", SECRET_KEY)
    if "PUNCTUAL_TEST_DATABASE_URL" not in os.environ and CLUSTER_VARIABLE not in os.environ:
        folder = _make_folder() / "migrated"
        make_migrated_cluster(folder)
        os.environ[CLUSTER_VARIABLE] = str(folder)
    # The settings want addresses. Workers set theirs.
    os.environ |= {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "REDIS_URL": "redis://127.0.0.1:1/0"}


def make_migrated_cluster(folder: Path) -> None:
    """Make a cluster in `folder/postgresql` whose database has all migrations applied, and end its server."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SECRET_KEY": SECRET_KEY, "DATABASE_URL": start_postgresql(folder)}
    try:
        migrate = [sys.executable, "manage.py", "migrate", "--no-input", "-v", "0"]
        subprocess.run(migrate, cwd=PROJECT, env=environment, check=True)
    finally:
        _end_servers()


def _make_folder() -> Path:
    """The folder of this process, which goes with it."""
    global _folder
    if _folder is not None:
        return _folder
    _folder = Path(tempfile.mkdtemp(prefix="pt-"))
    _folder.chmod(0o711)
    atexit.register(stop_servers)
    return _folder


def _own_postgresql(folder: Path) -> str:
    global _template
    if copy_migrated_cluster(folder):
        _template = USER
    return start_postgresql(folder)


def copy_migrated_cluster(folder: Path) -> bool:
    """Copy the cluster that has the schema, where there is one, to `folder/postgresql`; whether there is."""
    made = os.environ.get(CLUSTER_VARIABLE)
    if made:
        # With its owner, which may be somebody else.
        subprocess.run(["cp", "-a", str(Path(made) / "postgresql"), str(folder)], check=True)
    return bool(made)


def template() -> str | None:
    """The database that test databases are copies of; None where they are made from nothing."""
    return _template


def start_postgresql(folder: Path) -> str:
    """Serve the cluster in `folder/postgresql`, which is made if it is not there. Returns its address."""
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
            # Ctrl-C ends the test run, which ends the servers: they must not be first.
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
    """End what this plugin started, newest first, and remove its folder. Harmless when repeated."""
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
