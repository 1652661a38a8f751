"""The platform under attack and its users, each with their own project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extras

from launch import Platform, PlatformSettings
from launch.folders import PROJECT
from punctual.client import Client
from tests.chaos.doors import Ledger, RecordingTransport
from tests.plugins.migrated_cluster import copy_migrated_cluster
from tests.plugins.running_platform import QUICK_PERIODS

HONEST, CARELESS, HOSTILE = "ada", "carl", "mallory"
PEOPLE = (HONEST, CARELESS, HOSTILE)
PASSWORD = "only-for-this-run-4e1b"
MEBIBYTE = 1024**2
#: The memory limit of a worker here: enough for PyTorch and a small model, little compared to what gluttons
#: take.
WORKER_BYTES = 1536 * MEBIBYTE
WORKER_PROCESSES = 256

_MAKE_PEOPLE = """
import os
from projects.models import User
for name in os.environ["PEOPLE"].split():
    User.objects.create_user(name, password=os.environ["PASSWORD"])
"""


@dataclass
class Person:
    """A user with a token, whose client records every answer of the platform."""

    name: str
    client: Client

    @property
    def project(self) -> str:
        return f"{self.name}s-work"


@dataclass
class Scene:
    """The running platform, its users, an operator, and the ledger of all requests and answers."""

    platform: Platform
    people: dict[str, Person]
    operator: Person
    ledger: Ledger

    def rows(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """Read the platform's database directly."""
        connection = psycopg2.connect(self.platform.database_url.replace("postgres://", "postgresql://", 1))
        try:
            with connection, connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
                cursor.execute(sql, parameters)
                return [dict(row) for row in cursor.fetchall()]
        finally:
            connection.close()


@contextmanager
def running_scene() -> Iterator[Scene]:
    """Start a platform of its own with two agents of four emulated slots each; stop and delete it at the
    end."""
    data = Path(tempfile.mkdtemp(prefix="punctual-chaos-"))
    copy_migrated_cluster(data)
    platform = Platform(
        PlatformSettings(
            data=data,
            first_port=18700,
            first_worker_port=27500,
            # A function that hangs in its import must hang several times within a few minutes.
            environment=QUICK_PERIODS | {"PROFILE_SECONDS_PER_LEVEL": "1", "PROFILE_MAXIMUM_SECONDS": "24"},
            agent_configuration={
                "worker_memory_bytes": WORKER_BYTES,
                "worker_processes": WORKER_PROCESSES,
            },
            warm_workers=4,
            examples=False,
        )
    )
    try:
        platform.start()
        with ExitStack() as stack:
            yield _with_people(platform, stack)
    finally:
        platform.stop()
        platform.remove_sockets()
        shutil.rmtree(data, ignore_errors=True)


def _with_people(platform: Platform, stack: ExitStack) -> Scene:
    _make_people(platform)
    ledger = Ledger()

    def log_in(name: str, password: str) -> Person:
        with Client(platform.web_url, token="") as stranger:
            token = stranger.login(name, password)
        transport = RecordingTransport(name, ledger)
        client = Client(
            platform.web_url, token, retry_seconds=60.0, timeout_seconds=60.0, transport=transport
        )
        return Person(name, stack.enter_context(client))

    people = {name: log_in(name, PASSWORD) for name in PEOPLE}
    for person in people.values():
        person.client.projects.create(person.project)
    operator = log_in(*platform.operator_login)
    return Scene(platform, people, operator, ledger)


def _make_people(platform: Platform) -> None:
    """Operators create accounts, in the admin pages or, as here, on the machine itself."""
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATABASE_URL": platform.database_url,
        "REDIS_URL": platform.redis_url,
        "PEOPLE": " ".join(PEOPLE),
        "PASSWORD": PASSWORD,
    }
    subprocess.run(
        [sys.executable, "manage.py", "shell", "-v0", "-c", _MAKE_PEOPLE],
        cwd=PROJECT,
        env=environment,
        check=True,
    )
