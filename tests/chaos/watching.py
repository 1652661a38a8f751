"""Observations during the run: the memory of every process of the platform, the platform's metrics, its
servers."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil

from launch.state import lock_holder
from tests.chaos.evidence import Deed
from tests.chaos.scene import MEBIBYTE, WORKER_BYTES, Scene

SECONDS_BETWEEN_LOOKS = 2.0
READER = "reader of bundles"
NODE = "nursery, launchers, workers"
#: Limits of one process of each kind, in MiB: about half as much again as its maximum in ten minutes. Readers
#: of bundles have the platform's limit, and workers a quarter more than theirs, since shared libraries count
#: here. PostgreSQL's shared buffers count in each process that has touched them.
BOUNDS = {
    "supervisor": 100,
    "postgresql": 200,
    "valkey": 50,
    "web": 600,
    "agent-api": 200,
    "streams": 150,
    "celery": 450,
    "beat": 300,
    "agent": 100,
    READER: 512,
    NODE: WORKER_BYTES // MEBIBYTE * 5 // 4,
}


@dataclass
class Seen:
    """The most that one process of each kind ever held, in bytes, and the platform's metrics."""

    most_bytes: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    longest_pass_seconds: float = 0.0
    #: The machine's highest load, for judging measured times.
    highest_load: float = 0.0
    looks: int = 0
    loads: list[Deed] = field(default_factory=list)

    def beyond_their_memory(self) -> list[str]:
        """Return the kinds of processes that exceeded their limit."""
        return [
            f"{kind}: {held // MEBIBYTE} MiB, may hold {BOUNDS[kind]} MiB"
            for kind, held in self.most_bytes.items()
            if held > BOUNDS[kind] * MEBIBYTE
        ]


class Watcher:
    """Polls every two seconds in its own thread until it is stopped."""

    def __init__(self, scene: Scene) -> None:
        self.seen = Seen()
        self._scene = scene
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self.error: Exception | None = None

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *what: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._stop.wait(SECONDS_BETWEEN_LOOKS):
                self.look()
        except Exception as error:  # noqa: BLE001 - told at the end: a run that was not watched has shown nothing
            self.error = error

    def look(self) -> None:
        """Read memory and metrics once."""
        for kind, held in resident(self._scene):
            self.seen.most_bytes[kind] = max(held, self.seen.most_bytes.get(kind, 0))
        self.seen.highest_load = max(self.seen.highest_load, os.getloadavg()[0])
        waiting = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
        busy = psutil.cpu_percent()
        self.seen.loads.append(
            Deed(datetime.now(UTC), f"cores {busy:.0f} % busy, {waiting} processes want one")
        )
        try:
            self.seen.metrics = read_metrics(self._scene)
        except httpx.HTTPError:
            # The web server is restarting.
            return
        longest = self.seen.metrics['punctual_planner_pass_seconds{quantile="1"}']
        self.seen.longest_pass_seconds = max(self.seen.longest_pass_seconds, longest)
        self.seen.looks += 1


def read_metrics(scene: Scene) -> dict[str, float]:
    """Return the platform's metrics by name and labels."""
    token = scene.operator.client.transport.http.headers["Authorization"]
    answer = httpx.get(f"{scene.platform.web_url}/metrics", headers={"Authorization": token}, timeout=60.0)
    answer.raise_for_status()
    lines = (line for line in answer.text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def resident(scene: Scene) -> Iterator[tuple[str, int]]:
    """Return kind and peak resident bytes of every process of the platform."""
    platform = scene.platform
    if (supervisor := lock_holder(platform.folders)) is not None:
        yield from _of(supervisor, "supervisor", also_children=False)
    for process in platform.processes.values():
        if process.pid is not None:
            yield from _of(process.pid, _kind(process.name))
    for file in platform.folders.agents.glob("*/workers/*/launcher.json"):
        # Workers outlive their agent, so they have no parent among the platform's processes.
        if not file.with_name("exit.json").exists():
            yield from _of(json.loads(file.read_text())["pid"], NODE)


def _kind(name: str) -> str:
    if name.startswith("agent-node"):
        return "agent"
    return "celery" if name.startswith("celery-") else name


def _of(root: int, kind: str, *, also_children: bool = True) -> Iterator[tuple[str, int]]:
    try:
        process = psutil.Process(root)
        children = process.children() if also_children else []
        deeper = [descendant for child in children for descendant in child.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    # An agent's child is its nursery, which forks workers; a web server's workers start the reader of
    # bundles.
    below = {"agent": (NODE, NODE), "web": ("web", READER)}.get(kind, (kind, kind))
    for member, its_kind in (
        (process, kind),
        *((child, below[0]) for child in children),
        *((descendant, below[1]) for descendant in deeper),
    ):
        if (peak := _peak_bytes(member.pid)) is not None:
            yield its_kind, peak


def _peak_bytes(pid: int) -> int | None:
    """Return the peak memory of a process as the kernel counts it, or None if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(peak[1]) * 1024 if peak else None
