"""The agent's side of the in-memory store: real stores and a simulated clock."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from emulated_links.sockets import connect
from recovery.store import wire
from tests.agent.conftest import process_alive, wait_until
from workers.agent.machine import clock
from workers.agent.orders.desired_state import DesiredState, StorePeers
from workers.agent.storage import memory_store
from workers.agent.storage.memory_store import SILENT_SECONDS, STANDS_STILL_SECONDS, MemoryStore

LIMIT_BYTES = 1 << 20
KEEPS = {"job": "job", "generation": 1, "secret": "s" * 40, "send": [], "keep": [0], "fetch": []}
DESIRED = DesiredState(1, 1, (), frozenset(), frozenset(), StorePeers("a", None, (KEEPS,)), None)


class Agent:
    """Polls its store; the clock advances a quarter of a second between polls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.now = 1000.0
        monkeypatch.setattr(clock, "boot_time_seconds", lambda: self.now)
        self.store = MemoryStore(folder, LIMIT_BYTES, LIMIT_BYTES, "127.0.0.1")

    def look(self, seconds: float = 0.25) -> None:
        self.now += seconds
        self.store.look((), float("1e18"), DESIRED)

    def look_for(self, seconds: float) -> None:
        for _ in range(round(4 * seconds)):
            self.look()

    def has_answer(self) -> bool:
        """Return whether the store has answered. The clock stands still while the test waits."""
        self.look(0.0)
        report = self.store.report()
        return report is not None and "silent_seconds" not in report and not report["problem"]

    @property
    def process(self) -> int:
        return int((self.folder / "lock").read_text())


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: Any, **settings: Any) -> subprocess.Popen[bytes]:
        started.append(Popen(*args, **settings))
        return started[-1]

    Popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    created = Agent(tmp_path / "memory", monkeypatch)
    wait_until(created.has_answer, "the store answers")
    yield created
    created.store.close()
    for process in started:
        process.kill()
        process.wait()


def test_a_silent_store_is_not_counted_and_is_replaced(agent: Agent) -> None:
    frozen = agent.process
    os.kill(frozen, signal.SIGSTOP)
    agent.look_for(SILENT_SECONDS + 3.0)
    report = agent.store.report()
    assert report is not None
    assert report["silent_seconds"] >= SILENT_SECONDS
    assert report["protection"] == "none"
    assert report["problem"].startswith("this server's in-memory store has not answered for ")
    agent.look_for(STANDS_STILL_SECONDS)
    wait_until(lambda: not process_alive(frozen), "it is ended")
    wait_until(agent.has_answer, "another one answers")
    assert agent.process != frozen


def test_a_store_that_answers_in_time_is_kept(agent: Agent) -> None:
    here = agent.process
    os.kill(here, signal.SIGSTOP)
    agent.look_for(STANDS_STILL_SECONDS - 5.0)
    os.kill(here, signal.SIGCONT)
    wait_until(agent.has_answer, "it answers")
    os.kill(here, signal.SIGSTOP)
    agent.look_for(STANDS_STILL_SECONDS - 5.0)
    os.kill(here, signal.SIGCONT)
    wait_until(agent.has_answer, "it answers again")
    assert agent.process == here


def test_an_agent_that_was_frozen_itself_does_not_blame_its_store(agent: Agent) -> None:
    here = agent.process
    os.kill(here, signal.SIGSTOP)
    agent.look()
    agent.look(1000.0)  # the machine was suspended
    report = agent.store.report()
    assert report is not None
    assert "silent_seconds" not in report
    os.kill(here, signal.SIGCONT)
    wait_until(agent.has_answer, "it answers")
    assert agent.process == here


def test_a_store_that_accepts_no_connections_is_replaced(agent: Agent) -> None:
    frozen = agent.process
    os.kill(frozen, signal.SIGSTOP)
    agent.store.close()
    callers: list[socket.socket] = []
    with suppress(BlockingIOError):
        callers += (connect(agent.folder, wire.CONTROL_NAME, blocking=False) for _ in range(100))
    assert len(callers) < 100, "the next one would wait"
    agent.look_for(STANDS_STILL_SECONDS + 1.0)
    wait_until(lambda: not process_alive(frozen), "it is ended")
    for caller in callers:
        caller.close()
    agent.now += memory_store.PAUSE_SECONDS
    wait_until(agent.has_answer, "another one answers")


def test_holdings_of_a_dead_store_are_no_longer_reported(agent: Agent) -> None:
    os.kill(agent.process, signal.SIGKILL)

    def is_reported() -> bool:
        agent.look(0.0)
        report = agent.store.report()
        assert report is not None
        return "what it held is lost" in report["problem"]

    wait_until(is_reported, "it is reported")
    agent.now += memory_store.PAUSE_SECONDS
    wait_until(agent.has_answer, "another one answers")


def test_holdings_from_before_a_fence_are_not_reported_after_it(agent: Agent) -> None:
    agent.now += memory_store.ASK_SECONDS
    os.kill(agent.process, signal.SIGSTOP)
    agent.look(0.0)
    agent.store.forget_everything()
    os.kill(agent.process, signal.SIGCONT)
    reports: list[object] = []

    def answered() -> bool:
        agent.store._listen()
        reports.append(agent.store.report())
        return not agent.store._unanswered

    wait_until(answered, "both questions are answered")
    assert set(map(str, reports)) == {"None"}
    wait_until(agent.has_answer, "the store answers the next question")
