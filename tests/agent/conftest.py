"""A running agent (a real process, with real launchers and sandboxes) against a fake control plane."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from punctual.protocol.staged import STAGED
from tests.agent.fake_control_plane import FakeControlPlane
from tests.plugins.forking import forking
from workers.agent import command_line
from workers.agent.machine.clock import process_start_ticks

TINY_RUNTIME = Path(__file__).parent / "tiny_runtime"
PROJECT = Path(__file__).parents[2]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Wait for `condition` to hold; return its value. Bounded, so that a broken agent fails the test."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.02)
    return value


def tiny_runtime(folder: Path) -> Path:
    """Make a runtime at `folder` without torch: the tiny runtime beside this file, and an empty module for
    everything else that an agent stages."""
    shutil.copytree(TINY_RUNTIME, folder)
    for name in STAGED:
        path = folder / name
        if not path.exists():
            module = path if path.suffix == ".py" else path / "__init__.py"
            module.parent.mkdir(parents=True, exist_ok=True)
            module.touch()
    return folder


class RunningAgent:
    """An agent's process and its folder."""

    def __init__(self, folder: Path, plane: FakeControlPlane) -> None:
        self.folder = folder
        self.data = folder / "agent"
        self.store = folder / "store"
        self.plane = plane
        self.settings: dict[str, Any] = {"warm_workers": 0, "report_seconds": 0.05, "slots": 4}
        self.environment: dict[str, str] = {}
        self.runtime = tiny_runtime(folder / "runtime")
        #: Values of the agent's modules that this test replaces, by their full names.
        self.patches: dict[str, Any] = {}
        self.process: BaseProcess | None = None

    def start(self) -> None:
        """Start the agent, or start it again."""
        settings = {
            "server_url": self.plane.url,
            "stream_url": self.plane.url,
            "checkpoint_url": self.store.as_uri(),
            "data": str(self.data),
            "name": "node-1",
            "address": "127.0.0.1",
            "runtime_source": str(self.runtime),
            "enrol_token": "token-1",
            **self.settings,
        }
        lines = [
            f"{name} = {json.dumps(value)}" for name, value in settings.items() if not isinstance(value, dict)
        ]
        for name, table in settings.items():
            if isinstance(table, dict):
                lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
        (self.folder / "agent.toml").write_text("\n".join(lines) + "\n")
        (self.folder / "agent.log").touch()
        environment = {"PATH": os.environ["PATH"], "DATABASE_URL": "postgres://secret", **self.environment}
        self.process = forking().Process(target=_run, args=(self.folder, environment, self.patches))
        self.process.start()

    @property
    def process_id(self) -> int:
        """Process id of the last started agent."""
        assert self.process is not None
        assert self.process.pid is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        """Send the agent a signal."""
        os.kill(self.process_id, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.join()

    def wait_exit(self, seconds: float = 60.0) -> int:
        """Wait for the agent to end; return its exit code."""
        assert self.process is not None
        self.process.join(seconds)
        assert self.process.exitcode is not None, "the agent does not end"
        return self.process.exitcode

    @property
    def log(self) -> str:
        """Return the agent's log."""
        return (self.folder / "agent.log").read_text()

    def launchers(self) -> list[dict[str, Any]]:
        """Return launcher.json of all workers with a running launcher, and each worker's ``folder``."""
        launchers = []
        for path in self.data.glob("workers/*/launcher.json"):
            try:
                value = json.loads(path.read_text())
            except FileNotFoundError:
                continue
            if process_start_ticks(value["pid"]) == value["started"]:
                launchers.append({**value, "folder": path.parent})
        return launchers

    def close(self) -> None:
        """End the agent, its launchers and its store."""
        if self.process is not None and self.process.is_alive():
            self.signal(signal.SIGCONT)
            self.kill()
        wait_until(self._end_launchers, "no launcher is left")
        self._end_store()

    def store_process(self) -> int | None:
        """Return the process of the in-memory store, if one runs."""
        try:
            process_id = int((self.data / "memory" / "lock").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return process_id if process_start_ticks(process_id) is not None else None

    def _end_store(self) -> None:
        process_id = self.store_process()
        if process_id is not None:
            os.kill(process_id, signal.SIGKILL)

    def _end_launchers(self) -> bool:
        """Repeat, because a launcher that was starting when its agent was killed appears late."""
        launchers = self.launchers()
        for launcher in launchers:
            os.kill(launcher["pid"], signal.SIGTERM)
            os.kill(launcher["pid"], signal.SIGCONT)  # a failed test may have left it frozen
        return not launchers


def _run(folder: Path, environment: dict[str, str], patches: dict[str, Any]) -> None:
    """Become `python -m workers.agent run`."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(PROJECT)
    log = os.open(folder / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 2)
    os.close(log)
    for name, value in patches.items():
        module, _, attribute = name.rpartition(".")
        setattr(import_module(module), attribute, value)
    command_line.app(["run", "--config", str(folder / "agent.toml")], prog_name="python -m workers.agent")


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    """A fake control plane."""
    plane = FakeControlPlane()
    yield plane
    plane.close()


@pytest.fixture
def agent(tmp_path: Path, plane: FakeControlPlane) -> Iterator[RunningAgent]:
    """An agent, not started yet."""
    running = RunningAgent(tmp_path, plane)
    try:
        yield running
    finally:
        running.close()
    if running.process is not None:
        print(running.log)


def process_alive(process_id: int) -> bool:
    """Return whether the process runs (a zombie does not)."""
    return process_start_ticks(process_id) is not None
