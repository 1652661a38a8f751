"""Cost for training and frequency of recovery points in memory, against no points at all.

Two emulated servers with one accelerator each train the example GPT; what both send really goes over the
emulated links, and each server's in-memory store keeps a copy of the other's state. Ways to send the copies
alternate (ABAB), so that a busy machine affects all of them.

* `none`: no recovery points.
* `gemini`: chunks in the idle times of the network, through sub-buffers.
* `interleaving without a pipeline`: the same through one buffer.
* `blocking`: training waits for the copies of each point.

Setting `idle` leaves enough idle time for a point after each iteration; `narrow` does not. With `slow_copies`
copying received bytes takes as long as receiving them, and idle time must fit both in sequence; with `tight`
it fits either. `--share` is an agent's `memory_point_share`: its default, or 1.0 for a point after each
iteration that can carry it. `predicted` are the points per iteration by the model of sub-buffers
(`recovery/traffic/link.py`), without the cost of writing. `--json` keeps other settings in the file;
`manage.py reproduce gemini` shows research/gemini/measured.json.

    python -m benchmarks.runtime.checkpoint_traffic [--setting idle|narrow|slow_copies|tight]
        [--modes gemini ...] [--share 0.02] [--rounds 2] [--iterations 60] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from emulated_links.rates import NETWORK, STATE, ServerLinks
from emulated_links.server import LinkServer
from emulated_links.sockets import connect
from recovery.store import process, wire
from recovery.traffic.link import Link, SubBuffers, received_through
from recovery.traffic.modes import TrafficMode
from recovery.traffic.partition import USABLE_SHARE
from workers.agent.machine.configuration import Configuration
from workers.runtime.at_home.local_agent import LocalAgent, stage_packages
from workers.runtime.at_home.local_nursery import Nursery
from workers.runtime.at_home.local_ports import free_port
from workers.runtime.at_home.local_worker import Message

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "character_model.py"
REPOSITORY = Path(__file__).resolve().parents[2]
SERVERS = 2
BATCH = 16
LIMIT_BYTES = 256 << 20
SECRET = "known to the two stores of this benchmark"
DEFAULT_SHARE = Configuration.memory_point_share
#: Iterations before those that count: warm-up and the profile of idle spans, with a small reserve.
FIRST_ITERATIONS = 60
#: The same without a profile.
WARM_ITERATIONS = 20
#: The example, extended by the time at which each iteration began.
FUNCTION = """
import time
from pathlib import Path
from typing import Any
from torch import Tensor, nn
import character_model

class Timed(character_model.CharacterModel):
    def train(self, batch: Any, model: nn.Module) -> Tensor:
        with open("began.txt", "a") as file:
            print(time.monotonic(), file=file)
        return super().train(batch, model)
"""


@dataclass(frozen=True)
class Setting:
    """Emulated servers: what they compute in an iteration, and what their links carry."""

    iteration_seconds: float
    network_bytes_per_second: float
    #: Rate from the device to its host, and from sub-buffers to memory.
    copy_bytes_per_second: float = 4e9

    @property
    def device(self) -> Message:
        """Return the device as workers receive it."""
        model = {"fixed_seconds": self.iteration_seconds, "seconds_per_sample": 0.0}
        fast = {"bytes_per_second": 4e9}
        links = {
            "within_server": fast,
            "network": {"bytes_per_second": self.network_bytes_per_second, "latency_seconds": 0.0005},
            "spine": fast,
            "host_to_device": {"bytes_per_second": self.copy_bytes_per_second},
            "disk": fast,
        }
        return {"kind": "emulated", "name": "emulated-gpu", "model": model, "links": links}


SETTINGS = {
    "idle": Setting(0.36, 20e6),
    "narrow": Setting(0.36, 2e6),
    # As on the paper's V100 servers. A point's own copy from the device takes as long in every mode.
    "slow_copies": Setting(0.36, 20e6, copy_bytes_per_second=20e6),
    "tight": Setting(0.36, 4e6, copy_bytes_per_second=4e6),
}


def predicted_points(setting: Setting, mode: TrafficMode, size: int) -> float:
    """Return the points per iteration, by the model, if copies go in idle times alone. Only the computing
    before ranks agree on the next point is idle."""
    buffers = SubBuffers() if mode is TrafficMode.GEMINI else SubBuffers(count=1)
    link = received_through(Link(setting.network_bytes_per_second), setting.copy_bytes_per_second, buffers)
    return 1.0 / ceil(link.seconds(size) / (USABLE_SHARE * setting.iteration_seconds))


class Store:
    """The in-memory store of one emulated server, and its agent's side."""

    def __init__(self, folder: Path, number: int, links: LinkServer, rates: Mapping[str, Any]) -> None:
        folder.mkdir()
        self.folder, self.number = folder, number
        self.port = free_port()
        links.listen("store", folder)
        self._rates = rates
        self.process = subprocess.Popen(process.command(sys.executable, REPOSITORY, folder, LIMIT_BYTES))
        self._connection = self._dial()

    @property
    def as_peer(self) -> Message:
        """Return its description for other stores."""
        return {"server": str(self.number), "address": "127.0.0.1", "port": self.port}

    def serve(self, rank: int, box: Path, peer: Store) -> None:
        """Serve a rank's worker, whose copies the peer keeps, and keep copies of the peer's rank."""
        worker = {
            "key": "worker", "box": str(box), "user_id": None, "job": "local", "generation": 1, "rank": rank,
            "world_size": SERVERS, "limit_bytes": LIMIT_BYTES // 2,
        }  # fmt: skip
        group = {
            "job": "local", "generation": 1, "secret": SECRET, "keep": [peer.number], "fetch": [],
            "send": [{"rank": rank, "peers": [peer.as_peer]}],
        }  # fmt: skip
        state = {
            "lease": wire.boot_seconds() + 3600.0, "jobs": None, "serve": [worker],
            "links": {"rates": self._rates, "rack": ""},
            "peers": {**self.as_peer, "groups": [group]},
        }  # fmt: skip
        wire.send(self._connection, {"state": state})

    def end(self) -> None:
        """End the process."""
        self._connection.close()
        self.process.kill()
        self.process.wait()

    def _dial(self) -> socket.socket:
        end = time.monotonic() + 20.0
        while True:
            try:
                return connect(self.folder, wire.CONTROL_NAME)
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)


def train(
    nursery: Nursery, setting: Setting, mode: TrafficMode, share: float, iterations: int
) -> dict[str, Any]:
    """Make one run; return the times of its iterations, its points and its plan."""
    first = WARM_ITERATIONS if mode in (TrafficMode.NONE, TrafficMode.BLOCKING) else FIRST_ITERATIONS
    assignment: Message = {
        "function": {"entry": "timed:Timed"},
        "hyperparameters": {"global_batch_size": BATCH},
        "termination": {"max_iterations": first + iterations + 1, "target": None},
        "device": setting.device,
        "places": {"servers": list(range(SERVERS)), "racks": [0] * SERVERS},
        "memory_points": None if mode is TrafficMode.NONE else {"share": share, "copies": mode.value},
    }
    with tempfile.TemporaryDirectory() as name, LocalAgent(nursery.start_worker) as agent:
        source = Path(name) / "bundle"
        source.mkdir()
        (source / "timed.py").write_text(FUNCTION)
        (source / EXAMPLE.name).write_text(EXAMPLE.read_text())
        links = ServerLinks.from_message(setting.device["links"])
        servers = [agent.link_server(links, number) for number in range(SERVERS)]
        rates = setting.device["links"]
        stores = [Store(Path(name) / str(n), n, server, rates) for n, server in enumerate(servers)]
        try:
            workers = agent.warm_workers(SERVERS)
            for rank, store in enumerate(stores):
                store.serve(rank, workers[rank].box, stores[1 - rank])
            generation = agent.begin(workers, source, assignment).wait_until_ready().train_from_nothing()
            generation.wait_for_iteration(first, 120.0)
            before = servers[0].carried()[NETWORK][STATE]
            seconds = 20.0 + 10 * iterations * setting.iteration_seconds
            generation.leader.wait_for_file("final", seconds)
            carried = servers[0].carried()[NETWORK][STATE] - before
            events = generation.leader.of_kind("event")
            began = [float(line) for line in _began(workers[0].box).read_text().split()]
        finally:
            for store in stores:
                store.end()
    plans = [event for event in events if event["kind"] == "copy_traffic"]
    periods = [later - one for one, later in zip(began[first:], began[first + 1 :], strict=False)]
    size = plans[-1]["bytes"] if plans else None
    interleaved = mode in (TrafficMode.GEMINI, TrafficMode.WITHOUT_PIPELINE)
    return {
        "mode": mode.value,
        "iteration_seconds": median(periods),
        "mean_seconds": sum(periods) / len(periods),
        "copied_bytes_per_iteration": carried / len(periods),
        "points_per_iteration": None if size is None else carried / len(periods) / size,
        "predicted": predicted_points(setting, mode, size) if interleaved and size else None,
        "write_seconds": plans[-1]["write_seconds"] if plans else None,
        "copy_seconds": plans[-1]["copy_seconds"] if plans else None,
        "plan": plans[-1] if plans else None,
    }


def _began(box: Path) -> Path:
    return next(path for path in (box / "began.txt", box / "bundle" / "began.txt") if path.exists())


def compare(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare each way with none: the median over rounds of the slow-down of iterations."""
    by_mode: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        by_mode.setdefault(run["mode"], []).append(run)
    without = by_mode[TrafficMode.NONE.value]
    rows = []
    for mode, found in by_mode.items():
        pairs = [
            one["mean_seconds"] / other["mean_seconds"] - 1.0
            for one, other in zip(found, without, strict=True)
        ]
        points = [run["points_per_iteration"] for run in found if run["points_per_iteration"] is not None]
        rows.append(
            {
                "mode": mode,
                "iteration_seconds": median(run["mean_seconds"] for run in found),
                "over_none": median(pairs),
                "over_none_by_round": pairs,
                "points_per_iteration": median(points) if points else None,
                **{name: found[-1][name] for name in ("predicted", "write_seconds", "copy_seconds")},
            }
        )
    return rows


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--setting", choices=sorted(SETTINGS), default="idle")
    parser.add_argument(
        "--modes", nargs="+", type=TrafficMode, default=[TrafficMode.NONE, TrafficMode.GEMINI]
    )
    parser.add_argument("--share", type=float, default=DEFAULT_SHARE)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    setting = SETTINGS[chosen.setting]
    load = os.getloadavg()[0]
    print(f"{SERVERS} emulated servers on {platform.machine()}, {os.cpu_count()} cores, load {load:.1f}")
    runs = []
    with tempfile.TemporaryDirectory() as name, closing(Nursery(stage_packages(Path(name) / "p"))) as nursery:
        for _round in range(chosen.rounds):
            for mode in dict.fromkeys([TrafficMode.NONE, *chosen.modes]):
                runs.append(train(nursery, setting, mode, chosen.share, chosen.iterations))
                print(json.dumps(runs[-1]), flush=True)
    rows = compare(runs)
    for row in rows:
        print(described(row))
    if chosen.json is not None:
        kept = json.loads(chosen.json.read_text()) if chosen.json.exists() else {}
        kept[f"{chosen.setting}, share {chosen.share:g}"] = {
            "setting": asdict(setting),
            "machine": _machine(),
            "load": round(load, 1),
            "rounds": chosen.rounds,
            "iterations": chosen.iterations,
            "rows": rows,
            "plan": _last_plan(runs),
        }
        chosen.json.write_text(json.dumps(kept, indent=1) + "\n")


def described(row: Mapping[str, Any]) -> str:
    """Return a row in words."""
    text = f"{row['mode']:32} {row['iteration_seconds'] * 1000:7.1f} ms, {row['over_none']:+.2%}"
    if row["points_per_iteration"] is not None:
        text += f", {row['points_per_iteration']:.2f} points for each iteration"
    if row["predicted"] is not None:
        text += f" (predicted {row['predicted']:.2f}), of {row['copy_seconds'] * 1000:.0f} ms on the network"
    return text


def _machine() -> str:
    """Return the machine, its cores, and whether the runs had real-time priority."""
    ahead = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    return f"{platform.machine()}, {os.cpu_count()} cores" + (", real-time priority" if ahead else "")


def _last_plan(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the last report of the last run in idle times, without the event's name."""
    plans = [run["plan"] for run in runs if run["plan"] and run["mode"] == TrafficMode.GEMINI.value]
    return None if not plans else {name: plans[-1][name] for name in plans[-1] if name not in ("id", "kind")}


if __name__ == "__main__":
    main()
