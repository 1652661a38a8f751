"""A node agent for one machine without a platform: starts workers, sends them messages, receives reports.

The benchmarks, the tests and `python -m workers.runtime.try_function` drive real worker processes with it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from emulated_links.rates import ServerLinks
from emulated_links.server import LinkServer
from punctual.protocol.staged import STAGED
from punctual.randomness import HASH_SEED
from workers.runtime.at_home.local_ports import LOOPBACK, free_port
from workers.runtime.at_home.local_worker import Launch, LocalWorker, Message, start_process
from workers.runtime.runtime_plan import content_digest

_REPOSITORY = Path(__file__).resolve().parents[3]


def stage_packages(target: Path) -> Path:
    """Copy the packages that a worker may import from the repository."""
    for name in STAGED:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if (_REPOSITORY / name).is_dir():
            shutil.copytree(_REPOSITORY / name, path, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(_REPOSITORY / name, path)
    return target


class LocalAgent:
    """Starts workers below one folder and ends them all on exit."""

    def __init__(
        self, launch: Launch = start_process, data: Mapping[str, Path] = MappingProxyType({})
    ) -> None:
        """Create the folder and stage the packages.

        Args:
            data: the workers' declared data, by name.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="punctual-"))
        self._launch = launch
        self._data = data
        self.workers: list[LocalWorker] = []
        packages = stage_packages(self._folder / "packages")
        self.environment = {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": str(packages),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": HASH_SEED,
        }
        self.secret = secrets.token_hex(16)
        self._link_servers: dict[tuple[str, int], LinkServer] = {}

    def link_server(self, links: ServerLinks, server: int) -> LinkServer:
        """Return the link server of emulated server number `server`; one for each set of links."""
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
        """Start a worker, which warms up.

        Args:
            auto_store: confirm its files at once, as if they were stored.
        """
        box = self._folder / f"w{len(self.workers)}"
        for name in ("bundle", "in", "out", "data"):
            (box / name).mkdir(parents=True)
        for name, path in self._data.items():
            (box / "data" / name).symlink_to(path)
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
        """Start the workers of a generation on the function in `source`; wait up to `seconds` for each to get
        warm.

        Args:
            assignment: fields that differ from :func:`assignment_defaults`.
            by_rank: further fields for single ranks.
        """
        workers = self.warm_workers(world_size, auto_store=auto_store, seconds=seconds)
        return Generation(self, workers, source, assignment, by_rank)

    def begin(
        self, workers: Sequence[LocalWorker], source: Path, assignment: Mapping[str, Any]
    ) -> Generation:
        """Assign a generation on the function in `source` to warm workers."""
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
    """Return an assignment that trains on the CPU of this machine."""
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


def runtime_plan(*synchronisers: Mapping[str, Any], family: str = "dense") -> Message:
    """Return a runtime plan of these synchronisers; without any, every job's default plan."""
    usual = [
        {"kind": "expert_parallel", "choices": {}},
        {"kind": "sparse", "choices": {}},
        {"kind": "dense", "choices": {"gradients_in_buckets": True}},
    ]
    plan = {
        "family": family,
        "shape": "packed",
        "synchronisers": [dict(each) for each in synchronisers] or usual,
    }
    return {**plan, "digest": content_digest(plan)}


@dataclass(frozen=True)
class CheckpointFiles:
    """A durable state: the shards that the ranks wrote."""

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
        """Return the numbers of a rank's server and rack in the agent's format."""
        places = self.assignment.get("places")
        server, rack = (0, 0) if places is None else (places["servers"][rank], places["racks"][rank])
        return f"{server:016x}{rack:016x}"

    def _serve_links(self, agent: LocalAgent) -> None:
        """Serve to each worker the links of its place's emulated server."""
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
        """Send a goal to all ranks."""
        for worker in self.workers:
            worker.goal(goal, start)

    def train_from_nothing(self) -> Generation:
        """Let all ranks train from the beginning."""
        self.goal("train", {"from": "nothing"})
        return self

    def train_from(self, predecessor: Generation) -> Generation:
        """Let all ranks take over from `predecessor`, and let `predecessor` hand over."""
        self.goal("train", predecessor.handover_start(len(self.workers)))
        predecessor.goal("hand_over")
        return self

    def train_from_checkpoint(self, point: CheckpointFiles) -> Generation:
        """Give each rank the shards that it reads and let all train from them."""
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
        """Return the first checkpoint that all ranks announce."""
        announced = [worker.wait_for_file("checkpoint", seconds) for worker in self.workers]
        (iteration,) = {file["iteration"] for file in announced}
        shards = [
            (worker.box / file["path"]).read_bytes()
            for worker, file in zip(self.workers, announced, strict=True)
        ]
        return CheckpointFiles(iteration, announced[0]["reason"], shards)

    def handover_start(self, readers: int) -> Message:
        """Return the start with which a successor of `readers` ranks takes this generation's state over."""
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
        """Return the finished job's metrics.json."""
        self.leader.wait_for_file("final", seconds)
        content: Message = json.loads((self.leader.box / "out" / "final" / "metrics.json").read_text())
        return content

    def stop(self) -> None:
        """End all workers."""
        self.goal("stop")
        for worker in self.workers:
            worker.kill()
