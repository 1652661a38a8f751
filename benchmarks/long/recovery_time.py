"""Cost of a lost server for a job: with its state in the memory of peers, and with storage alone.

    python -m benchmarks.long.recovery_time [--megabytes 200] [--kills 1] [--way memory|storage] [--share
    0.02]
        [--json OUT]

For root on Linux. It runs two platforms in sequence, each of four agents with one emulated GPU, in network
namespaces whose links really carry `NETWORK_BYTES_PER_SECOND`. Durable storage gives a twentieth of that to
the two workers that are left. The same function, whose state has the given size, trains on all four; then the
agent of one server, its workers and its store are killed and stay dead. *Memory*: points are kept in memory
as often as `--share` allows (an agent's `memory_point_share`, by default its default). *Storage*: there are
no stores, and the state is written again as soon as it is stored, so every ceil(time of a checkpoint / time
of an iteration) iterations: the published baseline (HighFreq). Servers are lost at a random moment of such a
period.

Wasted time is Gemini's: lost work and loading. Detection, the fence, the wait for servers
and the start of workers are shown beside it; they are the same for both. `expected` is the mean by the
formula t_ckpt + 1 / (2 f) + t_rtvl, with the time of a checkpoint and its frequency as measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform as platform_name
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from faults.processes import find
from faults.proxy import Proxy
from faults.schedule import Part
from launch import Platform, PlatformSettings
from launch.folders import PROJECT
from launch.ports import choose
from launch.waiting import wait_until
from punctual.client import Client, Job
from punctual.client.models import Recovery
from recovery.costs.wasted_time import Checkpointing
from tests.faults.network import Networks, run
from tests.plugins.running_platform import QUICK_PERIODS
from workers.agent.machine.configuration import Configuration

SERVERS = ("node-1", "node-2", "node-3", "node-4")
NETWORK_BYTES_PER_SECOND = 125_000_000
#: Rate of each server's disk. The two workers that continue read from two: a twentieth of the network
#: together. Four write to four, which is twice as fast.
STORAGE_BYTES_PER_SECOND = NETWORK_BYTES_PER_SECOND / 40
#: Iteration on all four; two take twice as long.
ITERATION_SECONDS = 2.0
BATCH = 24


@dataclass(frozen=True)
class Loss:
    """One lost server, in seconds. ``iterations``: iterations that were repeated."""

    #: Where the state was loaded from.
    source: str
    #: From the loss to its detection.
    detection: float
    #: From the detection until the server was fenced.
    fence: float
    #: From the fence until workers were started.
    resources: float
    #: Duration of the phase `starting`.
    start: float
    #: Duration of the phase `loading`.
    load: float
    #: Duration of the repeated work.
    lost_work: float
    iterations: int
    #: Until a checkpoint is complete, and from one to the next; in memory both are an iteration.
    checkpoint: float
    #: From one checkpoint to the next.
    period: float

    @property
    def wasted(self) -> float:
        """Lost work and loading."""
        return self.lost_work + self.load

    @property
    def expected(self) -> float:
        """Mean waste by the published formula."""
        return Checkpointing(min(self.checkpoint, self.period), self.period, self.load).wasted_seconds


def main() -> None:
    options = argparse.ArgumentParser(
        prog="benchmarks.long.recovery_time", description=__doc__.split("\n\n")[0]
    )
    options.add_argument("--megabytes", type=int, default=200)
    options.add_argument("--kills", type=int, default=1, help="of each way to keep the state")
    options.add_argument("--way", choices=("memory", "storage"), help="this one alone")
    options.add_argument("--share", type=float, default=Configuration.memory_point_share)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    state_bytes = chosen.megabytes << 20
    ways = [chosen.way] if chosen.way else ["memory", "storage"]
    load = os.getloadavg()[0]
    found = {
        way: measure(way == "memory", state_bytes, chosen.share, chosen.kills, chosen.seed) for way in ways
    }
    print_table(chosen.megabytes, found)
    if chosen.json:
        chosen.json.write_text(
            json.dumps(as_json(chosen.megabytes, chosen.share, load, found), indent=1) + "\n"
        )


def as_json(megabytes: int, share: float, load: float, found: dict[str, list[Loss]]) -> dict[str, Any]:
    """Return what `manage.py reproduce gemini` shows; ``load``: the machine's load at the beginning."""
    return {
        "machine": f"{platform_name.machine()}, {os.cpu_count()} cores",
        "load": load,
        "megabytes": megabytes,
        "share": share,
        "network_bytes_per_second": NETWORK_BYTES_PER_SECOND,
        "iteration_seconds": ITERATION_SECONDS,
        "losses": {
            way: [asdict(loss) | {"wasted": loss.wasted, "expected": loss.expected} for loss in losses]
            for way, losses in found.items()
        },
    }


def print_table(megabytes: int, found: dict[str, list[Loss]]) -> None:
    """Print the medians of both ways, and their ratio."""
    count = min(map(len, found.values()))
    print(f"{megabytes} MB of state, medians of {count} lost servers, seconds")
    names = (
        "detection", "fence", "resources", "start", "load", "lost_work", "wasted",
        "checkpoint", "period", "expected",
    )  # fmt: skip
    medians = {
        way: {name: statistics.median(getattr(loss, name) for loss in losses) for name in names}
        for way, losses in found.items()
    }
    for name in names:
        print(f"{name:12} " + "  ".join(f"{way} {medians[way][name]:8.2f}" for way in medians))
    print("iterations lost: " + "; ".join(f"{way} {[one.iterations for one in found[way]]}" for way in found))
    for name in ("wasted", "expected") if len(found) > 1 else ():
        print(f"ratio of {name} time: {medians['storage'][name] / medians['memory'][name]:.1f}")


def measure(in_memory: bool, state_bytes: int, share: float, kills: int, seed: int) -> list[Loss]:
    """Lose ``kills`` servers, one after another."""
    chance = random.Random(seed)
    losses = []
    with platform_of(in_memory, share) as (platform, client):
        write_seconds = state_bytes / len(SERVERS) / STORAGE_BYTES_PER_SECOND
        job = client.submit(
            PROJECT / "benchmarks/functions/large_state.py",
            name="state",
            batch_size=BATCH,
            max_iterations=10**6,
            hyperparameters={"state_bytes": state_bytes},
            # No state is written before the last one is stored, so this is the highest frequency.
            checkpoint_seconds=600.0 if in_memory else 1.0,
        )  # fmt: skip
        for number in range(kills):
            wait_for(lambda: on_all_servers(job), "the job trains on all servers")
            wait_for(lambda: kept(job, in_memory), "its state is kept")
            time.sleep(chance.uniform(0.0, write_seconds + ITERATION_SECONDS))
            losses.append(lose(platform, job, SERVERS[number % len(SERVERS)], in_memory))
            print("memory" if in_memory else "storage", losses[-1], flush=True)
        job.cancel()
    return losses


@contextmanager
def platform_of(in_memory: bool, share: float) -> Iterator[tuple[Platform, Client]]:
    """Run four servers with links of their own."""
    data = Path(tempfile.mkdtemp(prefix="punctual-recovery-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, data, ignore_errors=True)
        networks = stack.enter_context(Networks(SERVERS))
        for server in SERVERS:
            rate = f"{NETWORK_BYTES_PER_SECOND * 8}"
            run("tc", "-n", networks.namespace(server), "qdisc", "replace", "dev", "eth0", "root",
                "tbf", "rate", f"{rate}bit", "burst", "1mbit", "latency", "100ms")  # fmt: skip
        chosen = choose("127.0.0.1", {"agents": None, "streams": None}, 18950)
        agent_port, stream_port = chosen["agents"], chosen["streams"]
        ways = {
            name: stack.enter_context(Proxy((networks.gateway, 0), ("127.0.0.1", port)))
            for name, port in (("server_url", agent_port), ("stream_url", stream_port))
        }
        urls = {name: f"http://{networks.gateway}:{way.port}" for name, way in ways.items()}
        platform = Platform(settings(data, networks, urls, (agent_port, stream_port), in_memory, share))
        stack.callback(platform.remove_sockets)
        stack.callback(platform.stop)
        platform.start()
        name, password = platform.demo_login
        with Client(platform.web_url, token="") as stranger:
            token = stranger.login(name, password)
        client = Client(platform.web_url, token, retry_seconds=60.0)
        yield platform, stack.enter_context(client)


def settings(
    data: Path,
    networks: Networks,
    urls: dict[str, str],
    ports: tuple[int, int],
    in_memory: bool,
    share: float,
) -> PlatformSettings:
    """Return settings; without memory for stores, states are kept in storage alone."""
    link = {"bytes_per_second": NETWORK_BYTES_PER_SECOND, "latency_seconds": 0.0005}
    return PlatformSettings(
        data=data, first_port=18900, agent_port=ports[0], stream_port=ports[1], first_worker_port=30000,
        agents=len(SERVERS), slots=1,
        # Measure all levels at once: missing ones are measured only on idle GPUs, and the job leaves too few.
        environment=QUICK_PERIODS | {"PROFILE_SECONDS_PER_LEVEL": "1", "PROFILE_MAXIMUM_SECONDS": "300"},
        examples=False, warm_workers=1,
        device_model={"fixed_seconds": 0.0, "seconds_per_sample": ITERATION_SECONDS * len(SERVERS) / BATCH},
        links={"network": link, "spine": link, "disk": {"bytes_per_second": STORAGE_BYTES_PER_SECOND}},
        agent_configuration={"memory_point_share": share} if in_memory else {"memory_store_bytes": 0},
        each_agent={server: {"address": networks.address(server), **urls} for server in SERVERS},
        agent_namespaces={server: networks.file(server) for server in SERVERS},
    )  # fmt: skip


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 600.0) -> None:
    if not wait_until(condition, timeout_seconds=seconds, interval_seconds=0.25):
        raise SystemExit(f"not within {seconds:.0f} s: {what}")


def on_all_servers(job: Job) -> bool:
    job.refresh()
    return job.state == "running" and job.gpus == len(SERVERS)


def kept(job: Job, in_memory: bool) -> bool:
    """Return whether a state written by the present workers is kept."""
    found = job.memory_point()
    if in_memory:
        # Points are rarer before there is a plan for copies, and their period is measured after some points.
        measured = found["copies"] is not None and found["copies"]["measured_cost"] is not None
        return measured and found["memory"] is not None and found["protection"] == "full"
    # Two states are needed to know the time between them.
    return sum(point.generation == found["generation"] for point in job.checkpoints()) > 1


def frequency(job: Job, in_memory: bool) -> tuple[float, float]:
    """Return the present workers' seconds until a checkpoint is complete, and from one to the next."""
    if in_memory:
        planned = job.memory_point()["copies"]
        return planned["iterations"] * ITERATION_SECONDS, planned["every"] * ITERATION_SECONDS
    generation = job.memory_point()["generation"]
    points = sorted(point.iteration for point in job.checkpoints() if point.generation == generation)
    apart = [later - earlier for earlier, later in pairwise(points)]
    # The next write begins at the end of the iteration in which the last state was stored.
    period = statistics.median(apart) * ITERATION_SECONDS
    return period, period


def lose(platform: Platform, job: Job, server: str, in_memory: bool) -> Loss:
    """Kill all of a server, wait until the job trains without it, and let the server come back."""
    before = len(job.recoveries())
    kept_every = frequency(job, in_memory)
    print("copies:", job.memory_point()["copies"], flush=True)
    agent = platform.process(f"agent-{server}")
    agent.signal(signal.SIGSTOP)
    killed_at = datetime.now(UTC)
    for pid in pids_of(platform, server):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        wait_for(lambda: ended(job.recoveries(), before), "it trains without the server")
        return loss_of(job.recoveries()[0], killed_at, *kept_every)
    finally:
        agent.signal(signal.SIGCONT)


def pids_of(platform: Platform, server: str) -> list[int]:
    """Return workers, launchers and the store of a server. Its frozen agent does not restart them."""
    parts = (Part.WORKER, Part.LAUNCHER, Part.MEMORY_STORE)
    return [
        process.pid
        for target, found in find(platform.folders).items()
        if target.server == server and target.part in parts
        for process in found.all_of
    ]


def ended(recoveries: Sequence[Recovery], before: int) -> bool:
    return len(recoveries) > before and recoveries[0].running_at is not None


def loss_of(recovery: Recovery, killed_at: datetime, checkpoint: float, period: float) -> Loss:
    """Return a recovery's phases as the platform recorded them."""
    assert recovery.detected_at is not None
    assert recovery.fenced_at is not None
    seconds = {phase["phase"]: float(phase["seconds"]) for phase in recovery.phases}
    began = {phase["phase"]: datetime.fromisoformat(phase["started_at"]) for phase in recovery.phases}
    return Loss(
        source=recovery.source,
        detection=(recovery.detected_at - killed_at).total_seconds(),
        fence=(recovery.fenced_at - recovery.detected_at).total_seconds(),
        resources=(began["starting"] - recovery.fenced_at).total_seconds(),
        start=seconds["starting"],
        load=seconds["loading"],
        lost_work=recovery.lost_work_seconds,
        iterations=recovery.iterations_lost or 0,
        checkpoint=checkpoint,
        period=period,
    )


if __name__ == "__main__":
    main()
