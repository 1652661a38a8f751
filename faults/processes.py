"""The processes of a platform on this machine, from the files of its supervisor and agents."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from faults.schedule import Part, Target
from launch.folders import Folders
from launch.state import read_state
from workers.agent.machine.clock import process_start_ticks

#: Processes of the control plane by their supervisor's names.
_NAMES = {
    "web": Part.WEB,
    "agent-api": Part.AGENT_API,
    "streams": Part.STREAMS,
    "celery-planner": Part.PLANNER,
    "beat": Part.BEAT,
    "valkey": Part.BROKER,
    "postgresql": Part.DATABASE,
}
#: Parts whose child processes are equivalent: one is hit at random, and all are frozen together.
_WITH_CHILDREN = frozenset({Part.WEB, Part.AGENT_API, Part.STREAMS, Part.CELERY, Part.DATABASE})


class NotRunningError(RuntimeError):
    """No platform runs on these folders, or it has just ended."""


@dataclass(frozen=True)
class Process:
    """One process, protected against reuse of its id."""

    pid: int
    #: Start in clock ticks since boot; distinguishes the process from later owners of its id.
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process that has that id now; None if there is none."""
        ticks = process_start_ticks(pid)
        return None if ticks is None else cls(pid, ticks)

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal. Returns whether it existed."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if process_start_ticks(self.pid) == self.started_ticks:
                    signal.pidfd_send_signal(descriptor, number)
                    return True
            finally:
                os.close(descriptor)
        return False


@dataclass(frozen=True)
class Found:
    """Processes of a target now. ``one_of``: one of them is killed. ``all_of``: all are frozen together, and
    for a whole server killed together."""

    target: Target
    one_of: tuple[Process, ...]
    all_of: tuple[Process, ...]


def find(folders: Folders) -> dict[Target, Found]:
    """Return every target on this machine with its processes; none for processes being restarted.

    Raises NotRunningError if no platform runs on these folders.
    """
    state = read_state(folders)
    if state is None:
        raise NotRunningError(f"no platform runs on {folders.data}")
    found: dict[Target, Found] = {}
    for name, process in state["processes"].items():
        for one in _of_supervised(name, process["pid"]):
            found[one.target] = one
    for folder in sorted(folders.agents.glob("*/")):
        for one in _beside_the_agent(folder):
            found[one.target] = one
    for target in [target for target in found if target.part is Part.AGENT]:
        for one in _several(found, target):
            found[one.target] = one
    return found


def _several(found: dict[Target, Found], agent: Target) -> Iterator[Found]:
    """Yield all processes of a server, and those that supervise its workers, by its agent's name."""
    here = {target.part: one.all_of for target, one in found.items() if target.server == agent.server}
    watchers = here[Part.AGENT] + here.get(Part.LAUNCHER, ())
    others = (Part.WORKER, Part.NURSERY, Part.MEMORY_STORE)
    everything = watchers + tuple(process for part in others for process in here.get(part, ()))
    for part, processes in ((Part.SERVER, everything), (Part.WATCHERS, watchers)):
        yield Found(Target(part, agent.name, agent.server), processes, processes)


def _of_supervised(name: str, pid: int | None) -> Iterator[Found]:
    own = _alive([pid])
    children = _alive(_children(pid))
    if name.startswith("agent-") and name != "agent-api":
        server = name.removeprefix("agent-")
        yield Found(Target(Part.AGENT, name, server), own, own)
        # Launchers that it forked have the same command line, but are not direct children of the agent.
        direct = _alive(_children(pid, recursive=False))
        nurseries = tuple(child for child in direct if "nursery_process" in _command(child.pid))
        yield Found(Target(Part.NURSERY, "nursery", server), nurseries, nurseries)
        return
    part = _NAMES.get(name, Part.CELERY if name.startswith("celery-") else None)
    if part is None:
        return
    together = own + children if part in _WITH_CHILDREN else own
    # Killing one of PostgreSQL's children ends all of them.
    yield Found(Target(part, name), own if part is Part.DATABASE else together, together)
    if part is Part.PLANNER:
        yield Found(Target(Part.PLANNER_CHILD, f"{name}'s child"), children, children)


def _beside_the_agent(folder: Path) -> Iterator[Found]:
    """Yield processes that an agent has started and that outlive it."""
    server = folder.name
    launchers: list[int] = []
    workers: list[int] = []
    for file in sorted(folder.glob("workers/*/launcher.json")):
        if file.with_name("exit.json").exists() or not file.with_name("assignment.json").exists():
            continue
        written = _read(file)
        if written and process_start_ticks(written["pid"]) == written["started"]:
            launchers.append(written["pid"])
            workers.append(written["worker_pid"])
    one_of = _alive(launchers)
    yield Found(Target(Part.LAUNCHER, "launcher", server), one_of, one_of)
    one_of = _alive(workers)
    below = _alive([child for pid in workers for child in _children(pid)])
    yield Found(Target(Part.WORKER, "worker", server), one_of, one_of + below)
    stores = _alive(
        process.pid
        for process in psutil.process_iter()
        if "recovery.store.process" in (command := _command(process.pid)) and f"{folder}{os.sep}" in command
    )
    yield Found(Target(Part.MEMORY_STORE, "in-memory store", server), stores, stores)


def _read(file: Path) -> dict[str, Any] | None:
    """Return the content of a file that may be missing or incomplete at any time."""
    with suppress(OSError, ValueError):
        value: dict[str, Any] = json.loads(file.read_text())
        return value
    return None


def _alive(pids: Any) -> tuple[Process, ...]:
    return tuple(one for pid in pids if pid is not None and (one := Process.of(pid)) is not None)


def _children(pid: int | None, *, recursive: bool = True) -> list[int]:
    with suppress(psutil.Error):
        if pid is not None:
            return [child.pid for child in psutil.Process(pid).children(recursive=recursive)]
    return []


def _command(pid: int) -> str:
    with suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""
