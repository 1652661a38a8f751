"""The command line in isolation: without the user's configuration, and with a fake platform."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.conf import settings

from punctual.cli import main
from tests.cli.fake_platform import FakePlatform


@dataclass(frozen=True)
class Outcome:
    """Result of a command: exit code, stdout and stderr."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture(scope="session", autouse=True)
def _static_root() -> None:
    """Create the folder of static files, which pytest-django's server needs."""
    Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)


@pytest.fixture(autouse=True)
def _own_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("URL", "TOKEN", "PROJECT", "PROFILE", "DEBUG"):
        monkeypatch.delenv(f"PUNCTUAL_{name}", raising=False)
    # Processes of pytest-xdist have a width of their own.
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("PUNCTUAL_RETRY_SECONDS", "5")
    monkeypatch.setattr("punctual.client.streams.POLL_SECONDS", 0.1)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command as `run("jobs", "--json")`."""

    def run_command(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run_command


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePlatform]:
    """A platform that answers as scripted, on a real socket, and the environment that points to it."""
    with FakePlatform() as fake:
        monkeypatch.setenv("PUNCTUAL_URL", fake.url)
        monkeypatch.setenv("PUNCTUAL_TOKEN", "token-of-ada")
        yield fake
