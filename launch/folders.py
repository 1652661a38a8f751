"""Folders of the platform on this machine."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from launch.errors import LaunchError

#: The folder of the checkout, which contains this package.
PROJECT = Path(__file__).resolve().parent.parent

#: A Unix socket's path has at most 107 bytes; PostgreSQL's file name takes 20 of them.
_LONGEST_SOCKET_FOLDER = 80


@dataclass(frozen=True)
class Folders:
    """The data folder and its parts. `prepare` makes them; only their owner may read them."""

    data: Path

    @property
    def postgresql(self) -> Path:
        return self.data / "postgresql"

    @property
    def valkey(self) -> Path:
        return self.data / "valkey"

    @property
    def checkpoints(self) -> Path:
        return self.data / "checkpoints"

    @property
    def agents(self) -> Path:
        return self.data / "agents"

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def secrets(self) -> Path:
        return self.data / "secrets"

    @property
    def run(self) -> Path:
        """Runtime files: lock, state, the beat's schedule."""
        return self.data / "run"

    @property
    def examples_submitted(self) -> Path:
        """Output of `manage.py submit_examples`: a line with id and name for each job."""
        return self.run / "examples-submitted"

    @property
    def example_deployed(self) -> Path:
        """One sentence on the result of deploying the example language model."""
        return self.run / "example-deployed"

    @property
    def sockets(self) -> Path:
        """Folder of PostgreSQL's and Valkey's sockets: in `run/`, or under /tmp if that path is too long."""
        beside = self.run / "sockets"
        if len(os.fsencode(beside)) <= _LONGEST_SOCKET_FOLDER:
            return beside
        digest = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]
        return Path(tempfile.gettempdir(), f"punctual-{os.getuid()}-{digest}")

    def prepare(self) -> None:
        """Make every folder, readable only by its owner."""
        self.data.mkdir(parents=True, exist_ok=True)
        for folder in (self.checkpoints, self.logs, self.secrets, self.run, self.sockets):
            make_private(folder)
        # It may stay empty; the web server warns if it is missing.
        (self.data / "static").mkdir(exist_ok=True)
        # A worker that runs as another user traverses this folder to its own, but cannot list it.
        self.agents.mkdir(exist_ok=True)
        self.agents.chmod(0o711)


def make_private(folder: Path) -> None:
    """Make `folder` with mode 0700, or check that it is ours.

    Raises LaunchError if another user owns it: in a shared /tmp, that user could have made it first.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"cannot make the folder {folder}: {error.strerror}") from error
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (
        os.getuid(),
        65534 if os.getuid() == 0 else -1,
    ):
        raise LaunchError(
            f"{folder} belongs to somebody else: remove it, or move the project to a shorter path"
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)


def write_private(path: Path, text: str) -> None:
    """Replace `path` atomically by a file that only its owner can read."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def wheel_folder(package: str) -> Path:
    """Return an installed package's folder without importing it, for its programs.

    Raises LaunchError if it is not installed.
    """
    specification = importlib.util.find_spec(package)
    if specification is None or not specification.submodule_search_locations:
        raise LaunchError(f"the package {package} is not installed: run `make setup`")
    return Path(next(iter(specification.submodule_search_locations)))
