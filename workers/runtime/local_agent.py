"""Plays the node agent on one machine, without a platform: starts workers, tells them what to do, hears them.

The benchmarks, the tests and `python -m workers.runtime.try_function` drive real worker processes with it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from workers.links.rates import ServerLinks
from workers.links.server import LinkServer
from workers.runtime.synchronisation.plan import content_digest

LOOPBACK = "127.0.0.1"
_REPOSITORY = Path(__file__).resolve().parents[2]
_STAGED = (
    "punctual", "recovery/costs", "recovery/store", "recovery/traffic", "workers/links", "workers/runtime",
)  # fmt: skip

Message = dict[str, Any]


class WorkerProcess(Protocol):
    """The part of `subprocess.Popen` that is needed of a worker's process."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


Launch = Callable[[Path, Mapping[str, str]], WorkerProcess]


class WorkerEndedError(RuntimeError):
    """A worker ended, or was silent for too long, before it said what was waited for."""


def free_port() -> int:
    """A TCP port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def stage_packages(target: Path) -> Path:
    """Copy what a worker may import (`punctual`, `workers.runtime`) out of the repository."""
    for name in _STAGED:
        shutil.copytree(_REPOSITORY / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("recovery/__init__.py", "workers/__init__.py"):
        shutil.copy(_REPOSITORY / name, target / name)
    return target


class LocalWorker:
    """One worker process, its box and its socket."""

    def __init__(self, box: Path, process: WorkerProcess, auto_store: bool) -> None:
        self.box = box
        self.process = process
        self.messages: list[Message] = []
        self.auto_store = auto_store
        self.auto_acknowledge = True
        self._changed = threading.Condition()
        self._connection: socket.socket | None = None
        self.listen()

    def listen(self) -> None:
        """Open the agent's socket and take the worker's connections."""
        path = self.box / "agent.sock"
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def hang_up(self) -> None:
        """Behave like an agent that is gone: close the socket and the connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._changed:
                self._connection = connection
            self._read(connection)

    def _read(self, connection: socket.socket) -> None:
        try:
            with connection.makefile("rb") as lines:
                for line in lines:
                    self._take(json.loads(line))
        except (OSError, ValueError):
            return

    def _take(self, message: Message) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()
        if "event" in message and self.auto_acknowledge:
            self.send({"acknowledged": [message["event"]["id"]]})
        if "file" in message and self.auto_store:
            self.send({"stored": message["file"]["path"]})

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; a worker that is just gone does not hear it."""
        try:
            if self._connection is not None:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def goal(self, goal: str, start: Mapping[str, Any] | None = None) -> None:
        """Tell the worker a goal."""
        self.send({"goal": goal, "start": start})

    def wait_for(
        self, wanted: Callable[[Message], bool], seconds: float = 60.0, *, after: int = 0
    ) -> Message:
        """The first message from place `after` on that is wanted.

        Raises:
            WorkerEndedError: the worker ended without it, or `seconds` went by.
        """
        deadline = time.monotonic() + seconds
        while True:
            with self._changed:
                found = next((message for message in self.messages[after:] if wanted(message)), None)
                if found is not None:
                    return found
                if self.process.poll() is not None or time.monotonic() > deadline:
                    break
                self._changed.wait(0.1)
        failures = [event for event in self.of_kind("event") if event["kind"] == "failed"]
        if failures:
            raise WorkerEndedError(f"{failures[0]['message']}\n{failures[0]['traceback']}")
        raise WorkerEndedError(
            f"worker (exit code {self.process.poll()}) never said it; last: "
            f"{self.messages[-3:]}\n{self.log()}"
        )

    def wait_for_phase(self, phase: str, seconds: float = 60.0) -> Message:
        """The message that reports `phase`."""
        return self.wait_for(lambda message: message.get("phase") == phase, seconds)

    def wait_for_event(self, kind: str, seconds: float = 60.0) -> Message:
        """The event of this kind."""
        found = self.wait_for(lambda message: message.get("event", {}).get("kind") == kind, seconds)
        return dict(found["event"])

    def wait_for_file(self, kind: str, seconds: float = 60.0) -> Message:
        """The announcement of a checkpoint or of the final folder."""
        found = self.wait_for(lambda message: message.get("file", {}).get("kind") == kind, seconds)
        return dict(found["file"])

    def of_kind(self, name: str) -> list[Any]:
        """All contents of messages of one sort: `phase`, `metrics`, `event`, `file`, `hello`."""
        with self._changed:
            return [message[name] for message in self.messages if name in message]

    def log(self) -> str:
        """The end of what the worker wrote to stdout and stderr."""
        path = self.box.parent / f"{self.box.name}.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def end(self, seconds: float = 20.0) -> int:
        """Wait for the worker to exit by itself; returns the exit code."""
        return self.process.wait(seconds)

    def kill(self) -> None:
        """End the worker whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.hang_up_quietly()

    def hang_up_quietly(self) -> None:
        """Close the sockets of a worker that is gone."""
        try:
            self.hang_up()
        except OSError:
            return


def start_process(box: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker as an agent does, without the sandbox."""
    with (box.parent / f"{box.name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "workers.runtime", "--box", str(box)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=box,
        )


class LocalAgent:
    """Starts workers below one folder and ends them all at its own end."""

    def __init__(self, launch: Launch = start_process) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="punctual-"))
        self._launch = launch
        self.workers: list[LocalWorker] = []
        packages = stage_packages(self._folder / "packages")
        self.environment = {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": str(packages),
            "OMP_NUM_THREADS": "1",
        }
        self.secret = secrets.token_hex(16)
        self._link_servers: dict[tuple[str, int], LinkServer] = {}

    def link_server(self, links: ServerLinks, server: int) -> LinkServer:
        """What serves the links of emulated server number `server`; another one for other links."""
        key = (json.dumps(links.to_message(), sort_keys=True), server)
        if key not in self._link_servers:
            self._link_servers[key] = LinkServer(links)
            self._link_servers[key].start()
        return self._link_servers[key]

    def __enter__(self) -> LocalAgent:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        for server in self._link_servers.values():
            server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start_worker(self, *, auto_store: bool = True) -> LocalWorker:
        """Start a worker that gets warm; `auto_store`: confirm its files as if they were stored at once."""
        box = self._folder / f"w{len(self.workers)}"
        for name in ("bundle", "in", "out", "data"):
            (box / name).mkdir(parents=True)
        worker = LocalWorker(box, self._launch(box, self.environment), auto_store)
        self.workers.append(worker)
        return worker

    def start_generation(
        self,
        source: Path,
        assignment: Mapping[str, Any],
        world_size: int,
        *,
        auto_store: bool = True,
        seconds: float = 60.0,
        by_rank: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    ) -> Generation:
        """Start the workers of a generation on the function in `source` and wait until they are warm, each
        for `seconds`.

        Args:
            assignment: what differs from :func:`assignment_defaults`. by_rank: what single ranks are told
                otherwise than the rest.
        """
        workers = self.warm_workers(world_size, auto_store=auto_store, seconds=seconds)
        return Generation(self, workers, source, assignment, by_rank)

    def begin(
        self, workers: Sequence[LocalWorker], source: Path, assignment: Mapping[str, Any]
    ) -> Generation:
        """Give warm workers a generation on the function in `source`."""
        return Generation(self, workers, source, assignment, {})

    def warm_workers(
        self, count: int, *, auto_store: bool = True, seconds: float = 60.0
    ) -> list[LocalWorker]:
        """Start workers and wait until they are warm."""
        workers = [self.start_worker(auto_store=auto_store) for _ in range(count)]
        for worker in workers:
            worker.wait_for(lambda message: "hello" in message, seconds)
        return workers


def assignment_defaults() -> Message:
    """An assignment that trains on the CPU of this machine."""
    return {
        "job": "local",
        "generation": 1,
        "epoch": 1,
        "purpose": "training",
        "goal": "prepare",
        "start": None,
        "master_address": LOOPBACK,
        "interface_address": LOOPBACK,
        "termination": {"max_iterations": 100, "target": None},
        "seed": 0,
        "checkpoint_seconds": 3600,
        "data": [],
        "profile": None,
        "device": {"kind": "cpu"},
        "runtime_plan": runtime_plan(),
    }


def runtime_plan(*synchronisers: Mapping[str, Any]) -> Message:
    """A runtime plan of these synchronisers; the one that every job gets where none are named."""
    usual = [{"kind": "sparse", "choices": {}}, {"kind": "dense", "choices": {"gradients_in_buckets": True}}]
    plan = {
        "family": "dense",
        "shape": "packed",
        "synchronisers": [dict(each) for each in synchronisers] or usual,
    }
    return {**plan, "digest": content_digest(plan)}


@dataclass(frozen=True)
class CheckpointFiles:
    """A durable state as its workers wrote it: each rank's shard."""

    iteration: int
    reason: str
    shards: list[bytes]


class Generation:
    """The workers of one generation."""

    def __init__(
        self,
        agent: LocalAgent,
        workers: Sequence[LocalWorker],
        source: Path,
        assignment: Mapping[str, Any],
        by_rank: Mapping[int, Mapping[str, Any]],
    ) -> None:
        self.workers = list(workers)
        self.assignment: Message = {
            **assignment_defaults(),
            "world_size": len(workers),
            "master_port": free_port(),
            "secret": agent.secret,
            "workers": [{"rank": rank, "gpu_index": rank} for rank in range(len(workers))],
            **assignment,
        }
        self.handover_ports = [free_port() for _ in self.workers]
        self._serve_links(agent)
        for rank, worker in enumerate(self.workers):
            if source.is_dir():
                shutil.copytree(source, worker.box / "bundle", dirs_exist_ok=True)
            else:
                shutil.copy(source, worker.box / "bundle" / source.name)
            mine: Message = {"rank": rank, "gpu_index": rank, "handover_port": self.handover_ports[rank]}
            if self.assignment["device"]["kind"] == "emulated":
                mine["device"] = {**self.assignment["device"], "place": self._place(rank)}
            worker.send({"assign": {**self.assignment, **mine, **by_rank.get(rank, {})}})

    def _place(self, rank: int) -> str:
        """Numbers of a rank's server and of its rack, as an agent tells them."""
        places = self.assignment.get("places")
        server, rack = (0, 0) if places is None else (places["servers"][rank], places["racks"][rank])
        return f"{server:016x}{rack:016x}"

    def _serve_links(self, agent: LocalAgent) -> None:
        """Give each worker the links of the emulated server that its place names."""
        device, places = self.assignment["device"], self.assignment.get("places")
        if device["kind"] != "emulated":
            return
        servers = [0] * len(self.workers) if places is None else places["servers"]
        for worker, server in zip(self.workers, servers, strict=True):
            links = agent.link_server(ServerLinks.from_message(device["links"]), server)
            links.listen(worker.box.name, worker.box)

    @property
    def leader(self) -> LocalWorker:
        """Rank 0."""
        return self.workers[0]

    def wait_until_ready(self, seconds: float = 60.0) -> Generation:
        """Wait until every rank has reported `ready`."""
        for worker in self.workers:
            worker.wait_for_phase("ready", seconds)
        return self

    def goal(self, goal: str, start: Mapping[str, Any] | None = None) -> None:
        """Tell all ranks a goal."""
        for worker in self.workers:
            worker.goal(goal, start)

    def train_from_nothing(self) -> Generation:
        """Tell all ranks to train from the beginning."""
        self.goal("train", {"from": "nothing"})
        return self

    def train_from(self, predecessor: Generation) -> Generation:
        """Tell all ranks to take over from `predecessor`, and that one to hand over."""
        self.goal("train", predecessor.handover_start(len(self.workers)))
        predecessor.goal("hand_over")
        return self

    def train_from_checkpoint(self, point: CheckpointFiles) -> Generation:
        """Give each rank the shards that it reads and tell all to train from them."""
        shards = []
        files: list[dict[str, str]] = [{} for _ in self.workers]
        for number, content in enumerate(point.shards):
            reader = number % len(self.workers)
            (self.workers[reader].box / "in" / f"{number}.pt").write_bytes(content)
            files[reader][str(number)] = f"in/{number}.pt"
            shards.append({"id": number, "reader": reader, "holders": []})
        start = {"from": "checkpoint", "iteration": point.iteration, "shards": shards}
        for worker, own in zip(self.workers, files, strict=True):
            worker.goal("train", {**start, "files": own})
        return self

    def checkpoint_files(self, seconds: float = 60.0) -> CheckpointFiles:
        """The shards that all ranks announce first."""
        announced = [worker.wait_for_file("checkpoint", seconds) for worker in self.workers]
        (iteration,) = {file["iteration"] for file in announced}
        shards = [
            (worker.box / file["path"]).read_bytes()
            for worker, file in zip(self.workers, announced, strict=True)
        ]
        return CheckpointFiles(iteration, announced[0]["reason"], shards)

    def handover_start(self, readers: int) -> Message:
        """Where a successor with so many ranks gets this generation's state."""
        return {
            "from": "handover",
            "generation": self.assignment["generation"],
            "shards": [
                {
                    "id": number,
                    "reader": number % readers,
                    "holders": [{"tier": "memory", "address": LOOPBACK, "port": port}],
                }
                for number, port in enumerate(self.handover_ports)
            ],
        }

    def wait_for_iteration(self, iteration: int, seconds: float = 60.0) -> None:
        """Wait until rank 0 reports at least `iteration` iterations done."""
        self.leader.wait_for(
            lambda message: message.get("phase") == "training" and message["iteration"] >= iteration, seconds
        )

    def report(self, seconds: float = 60.0) -> Message:
        """The finished job's metrics.json."""
        self.leader.wait_for_file("final", seconds)
        content: Message = json.loads((self.leader.box / "out" / "final" / "metrics.json").read_text())
        return content

    def stop(self) -> None:
        """End all workers."""
        self.goal("stop")
        for worker in self.workers:
            worker.kill()
