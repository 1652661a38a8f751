"""The embedded PostgreSQL survives crashes, and refuses data that it would damage."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg2
import pytest

from launch.errors import LaunchError
from launch.postgresql import EmbeddedPostgres
from launch.privileges import RootMode, unprivileged_identity
from launch.process import ManagedProcess, ProcessSpecification

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's folder: its path may be too long for a socket, and other users may not enter it.
    made = Path(tempfile.mkdtemp(prefix="punctual-pg-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


def server_in(folder: Path, mode: RootMode = "auto") -> EmbeddedPostgres:
    return EmbeddedPostgres(folder / "data", folder / "sockets", unprivileged_identity(mode))


@contextmanager
def serving(server: EmbeddedPostgres, folder: Path) -> Iterator[ManagedProcess]:
    process = ManagedProcess(
        ProcessSpecification(
            "postgresql",
            server.command(),
            {},
            folder / "log",
            folder,
            prepare=server.prepare,
            is_ready=server.is_ready,
            stop_signal=server.stop_signal,
            may_be_killed=False,
            identity=server.identity,
        )
    )
    process.start()
    process.wait_ready()
    try:
        yield process
    finally:
        process.ask_to_stop()
        assert process.finish()


def is_the_log_writer(process: psutil.Process) -> bool:
    """Return whether the process is the log writer; one that is ending is not."""
    with suppress(psutil.Error):
        return "walwriter" in " ".join(process.cmdline())
    return False


def test_committed_data_survive_a_kill_and_a_stale_pid_file(folder):
    """The process that has the server's number by now is not a server."""
    server = server_in(folder)
    with serving(server, folder) as process:
        with pytest.raises(LaunchError, match="already serves"):
            server.prepare()
        server.create_database()
        with psycopg2.connect(server.url()) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE kept AS SELECT 7 AS number")
        connection.close()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        while process.restarts == 0 or not server.is_ready():
            process.keep_running()
        assert read_kept(server) == (7,)
    (folder / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n{folder / 'data'}\n")
    with serving(server, folder):
        assert read_kept(server) == (7,)


def read_kept(server: EmbeddedPostgres) -> tuple[object, ...] | None:
    connection = psycopg2.connect(server.url())
    with connection.cursor() as cursor:
        cursor.execute("SELECT number FROM kept")
        row = cursor.fetchone()
    connection.close()
    return row


def test_a_killed_server_restarts_though_a_child_of_it_is_frozen(folder):
    """A frozen child stands for one that does not notice the death: the next server would refuse to start
    while it lives."""
    server = server_in(folder)
    with serving(server, folder) as process:
        assert process.pid is not None
        writer = next(child for child in psutil.Process(process.pid).children() if is_the_log_writer(child))
        writer.suspend()
        os.kill(process.pid, signal.SIGKILL)
        while process.restarts == 0:
            process.keep_running()
        process.wait_ready()
        assert process.restarts == 1
        assert not writer.is_running()


def test_data_of_another_major_version_is_refused_naming_both(folder):
    (folder / "data").mkdir()
    (folder / "data" / "PG_VERSION").write_text("15\n")
    with pytest.raises(LaunchError, match=r"written by PostgreSQL 15, but PostgreSQL \d+ is installed"):
        server_in(folder).prepare()


def test_a_folder_with_other_content_is_left_unchanged(folder):
    (folder / "data").mkdir()
    (folder / "data" / "thesis.txt").write_text("years of work")
    with pytest.raises(LaunchError, match="neither empty nor a PostgreSQL data folder"):
        server_in(folder).prepare()
    assert (folder / "data" / "thesis.txt").exists()


@as_root
def test_root_can_run_postgresql_as_the_user_nobody(folder):
    server = server_in(folder, "nobody")
    with serving(server, folder):
        assert (folder / "data").stat().st_uid == server.identity.user_id
        assert server.is_ready()


@as_root
def test_the_user_nobody_is_refused_data_below_a_private_folder(folder):
    folder.chmod(0o700)
    with pytest.raises(LaunchError, match="cannot enter"):
        server_in(folder, "nobody").prepare()
