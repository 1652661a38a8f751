"""Time until a worker is warm, and its cost: forked by the agent's nursery against an interpreter of its own.

Both start the same launcher and sandbox; the clock runs from the request until the worker's hello. CPU time
is the worker's until then, read from the kernel. The nursery's own import is printed separately, since an
agent pays it once.

    python -m benchmarks.runtime.worker_start [--rounds 5] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from launch.waiting import wait_until
from workers.agent.machine import clock
from workers.agent.machine.configuration import Configuration
from workers.agent.processes.nursery import Nursery
from workers.agent.processes.runtime_staging import stage_runtime
from workers.agent.processes.sandboxing import Sandboxing
from workers.agent.processes.worker_messages import Hello, Message
from workers.agent.processes.worker_pool import WorkerPool
from workers.agent.processes.worker_sockets import WorkerSockets

LEASE_SECONDS = 600.0
LONGEST_SECONDS = 120.0
#: A forked worker takes at most this share of the CPU time of one that imports PyTorch itself.
AIM = 0.2


@dataclass(frozen=True)
class Start:
    """One start: seconds until the worker was warm, CPU seconds that it took."""

    seconds: float
    cpu_seconds: float


class Agent:
    """The part of an agent that starts workers."""

    def __init__(self, folder: Path, nursery: Nursery | None, runtime: Path) -> None:
        folder.mkdir()
        configuration = Configuration("", "", "", folder, "benchmark", "127.0.0.1", allow_unsandboxed=True)
        (folder / "workers").mkdir()
        self._heard = threading.Condition()
        self._warm: set[str] = set()
        self._sockets = WorkerSockets(self._hear)
        self._sockets.start()
        self._pool = WorkerPool(
            configuration, (), Sandboxing(configuration, runtime, 1), self._sockets, runtime, nursery
        )

    def start_worker(self) -> Start:
        """Start a worker, wait until it is warm, and end it."""
        begun = time.perf_counter()
        record = self._pool.launch(None, clock.boot_time_seconds() + LEASE_SECONDS)
        with self._heard:
            assert self._heard.wait_for(lambda: record.key in self._warm, LONGEST_SECONDS), (
                "it does not say hello"
            )
        seconds = time.perf_counter() - begun
        value = json.loads((record.folder / "launcher.json").read_text())
        (worker,) = psutil.Process(value["worker_pid"]).children()
        used = worker.cpu_times()
        self._pool.kill(record, "measured")
        wait_until(lambda: bool(self._pool.poll()), timeout_seconds=LONGEST_SECONDS, interval_seconds=0.01)
        return Start(seconds, used.user + used.system)

    def close(self) -> None:
        """Stop listening."""
        self._sockets.stop()

    def _hear(self, key: str, message: Message | None) -> None:
        if isinstance(message, Hello):
            with self._heard:
                self._warm.add(key)
                self._heard.notify_all()


def main() -> int:
    """Measure alternately and print; return 1 if the aim is missed."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.runtime.worker_start", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    starts: dict[str, list[Start]] = {"forked": [], "own interpreter": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        runtime = stage_runtime(folder / "runtime")
        nursery = Nursery(runtime)
        begun = time.perf_counter()
        nursery.start()
        wait_until(
            lambda: nursery.look() != "starting", timeout_seconds=LONGEST_SECONDS, interval_seconds=0.01
        )
        if nursery.look() != "ready":
            sys.exit("the nursery cannot be used here; see the warning above")
        imported_seconds = time.perf_counter() - begun
        agents = {
            "forked": Agent(folder / "forking", nursery, runtime),
            "own interpreter": Agent(folder / "starting", None, runtime),
        }
        for _ in range(arguments.rounds):
            for kind, agent in agents.items():
                starts[kind].append(agent.start_worker())
        for agent in agents.values():
            agent.close()
        nursery.close()
    return _report(starts, imported_seconds, arguments.json)


def _report(starts: dict[str, list[Start]], imported_seconds: float, output: Path | None) -> int:
    medians = {
        kind: Start(
            statistics.median(start.seconds for start in taken),
            statistics.median(start.cpu_seconds for start in taken),
        )
        for kind, taken in starts.items()
    }
    print(f"the nursery has imported everything after {imported_seconds:.2f} s (once for an agent)")
    for kind, start in medians.items():
        print(f"{kind:16} warm after {start.seconds:.2f} s, {start.cpu_seconds:.2f} s of CPU time (medians)")
    ratio = medians["forked"].cpu_seconds / medians["own interpreter"].cpu_seconds
    print(f"ratio of CPU time {ratio:.3f} (aim: at most {AIM})")
    if output is not None:
        result = {
            "python": platform.python_version(),
            "nursery_import_seconds": imported_seconds,
            "starts": {kind: [vars(start) for start in taken] for kind, taken in starts.items()},
            "cpu_ratio": ratio,
        }
        output.write_text(json.dumps(result, indent=2) + "\n")
    return int(ratio > AIM)


if __name__ == "__main__":
    sys.exit(main())
