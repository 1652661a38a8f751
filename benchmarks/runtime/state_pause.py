"""Pause of training for its state: a hand-over through memory, and a suspension.

    python -m benchmarks.runtime.state_pause [--megabytes 500] [--workers 4] [--to WORKERS] [--rounds 3]
        [--against FOLDER] [--handover-only] [--json OUT]

A function with frozen weights of the given size and nearly free iterations trains on that many workers of
this machine; with `--to` the new generation has another number. *Hand-over*: seconds from ordering a running
and a ready generation to change until the first iteration of the new one; *grown*: the most memory that a
rank of either needed for it in addition, as a share of the smallest shard. *Suspend*: seconds from ordering a
running generation to suspend until its state is written. `--against` names another checkout of the
repository: its runs alternate with this one's, so that both see the same machine. `--handover-only` leaves
the suspension out. *Worked*: CPU seconds of the workers during a hand-over's pause, which hardly depend on
other work on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from workers.runtime.at_home.local_agent import LocalAgent

if TYPE_CHECKING:
    # In earlier checkouts, which this file measures too, it is elsewhere.
    from workers.runtime.at_home.local_worker import Message

HERE = Path(__file__).resolve().parents[2]
FUNCTION = HERE / "benchmarks" / "functions" / "large_state.py"


#: Links without delay: the benchmark measures this machine.
FREE_LINKS = {
    name: {"bytes_per_second": 1e12}
    for name in ("within_server", "network", "spine", "host_to_device", "disk")
}
#: Fields that earlier checkouts need in a device model.
FREE_ALL_REDUCE = {
    "latency_seconds": 0.0,
    "intra_server_bytes_per_second": 1e12,
    "inter_server_bytes_per_second": 1e12,
}


def assignment_of(megabytes: int) -> Message:
    """Return the assignment of both generations."""
    return {
        "function": {"entry": "large_state:LargeState"},
        "hyperparameters": {"global_batch_size": 24, "state_bytes": megabytes << 20},
        "termination": {"max_iterations": 10**7, "target": None},
        "device": {
            "kind": "emulated",
            "name": "emulated",
            "model": {"fixed_seconds": 0.05, "seconds_per_sample": 0.0, **FREE_ALL_REDUCE},
            "links": FREE_LINKS,
        },
    }  # fmt: skip


class PeakGrowth:
    """Additional memory of processes since this object was made (Linux's `VmHWM`)."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._before = {pid: _kibibytes(pid, "VmRSS") for pid in pids}
        for pid in self._before:
            # Reset the peak to the present resident size.
            Path(f"/proc/{pid}/clear_refs").write_text("5\n")

    def bytes_of(self, pids: Iterable[int]) -> list[int]:
        """Return how far each process's peak was above its earlier size."""
        return [(_kibibytes(pid, "VmHWM") - self._before[pid]) * 1024 for pid in pids]


def _kibibytes(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds of processes so far, in total."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])  # in user mode and in the kernel
    return ticks / os.sysconf("SC_CLK_TCK")


def handover(agent: LocalAgent, assignment: Message, workers: int, to: int) -> tuple[float, float, int]:
    """Return the pause of one hand-over to ``to`` workers, their CPU seconds in it, and the largest memory
    growth of a rank in bytes."""
    old = agent.start_generation(FUNCTION, {**assignment, "generation": 1}, workers, seconds=400)
    old.wait_until_ready(400).train_from_nothing().wait_for_iteration(5, 120)
    new = agent.start_generation(FUNCTION, {**assignment, "generation": 2}, to, seconds=400)
    new.wait_until_ready(400)
    pids = [worker.process.pid for worker in (*old.workers, *new.workers)]
    growth = PeakGrowth(pids)
    worked = processor_seconds(pids)
    begun = time.perf_counter()
    new.train_from(old)
    new.leader.wait_for_event("first_iteration", 300)
    pause = time.perf_counter() - begun
    worked = processor_seconds(pids) - worked
    for worker in old.workers:
        worker.wait_for_phase("handed_over", 300)
    grown = max(growth.bytes_of(pids))
    old.stop()
    new.stop()
    return pause, worked, grown


def suspend_seconds(agent: LocalAgent, assignment: Message, workers: int) -> float:
    """Return the seconds from ordering a generation to suspend until every rank has written its state."""
    generation = agent.start_generation(FUNCTION, {**assignment, "generation": 1}, workers, seconds=400)
    generation.wait_until_ready(400).train_from_nothing().wait_for_iteration(5, 120)
    begun = time.perf_counter()
    generation.goal("suspend")
    for worker in generation.workers:
        worker.wait_for_phase("suspended", 300)
    taken = time.perf_counter() - begun
    generation.stop()
    return taken


def measure_here(megabytes: int, workers: int, to: int, handover_only: bool) -> Message:
    """Measure one hand-over, and one checkpoint unless left out, with this checkout's runtime."""
    assignment = assignment_of(megabytes)
    with LocalAgent() as agent:
        pause, worked, grown = handover(agent, assignment, workers, to)
    found = {"handover": pause, "worked": worked, "grown": grown * max(workers, to) / (megabytes << 20)}
    if not handover_only:
        with LocalAgent() as agent:
            found["suspend"] = suspend_seconds(agent, assignment, workers)
    return found


def measure_in(folder: Path, megabytes: int, workers: int, to: int, handover_only: bool) -> Message:
    """Measure the same in a process of another checkout."""
    answer = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--once", "--megabytes", str(megabytes),
         "--workers", str(workers), "--to", str(to), *(["--handover-only"] if handover_only else [])],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    result: Message = json.loads(answer.stdout)
    return result


def main() -> int:
    """Measure alternately and print."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.runtime.state_pause", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--to", type=int, help="workers of the new generation; as many unless told")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout, whose runs alternate with this one's")
    parser.add_argument("--handover-only", action="store_true", help="do not measure a suspension")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    to = arguments.to or arguments.workers
    if arguments.once:
        print(json.dumps(measure_here(arguments.megabytes, arguments.workers, to, arguments.handover_only)))
        return 0
    folders = {"here": HERE} | ({"against": arguments.against.resolve()} if arguments.against else {})
    found: dict[str, list[Message]] = {name: [] for name in folders}
    for _round in range(arguments.rounds):
        for name, folder in folders.items():
            found[name].append(
                measure_in(folder, arguments.megabytes, arguments.workers, to, arguments.handover_only)
            )
            print(name, found[name][-1], flush=True)
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"{arguments.megabytes} MB, {arguments.workers} workers to {to}, {machine}")
    units = {"handover": "s", "worked": "s of processors", "suspend": "s", "grown": "of a shard"}
    for what in found["here"][0]:
        unit = units[what]
        medians = {name: statistics.median(one[what] for one in rounds) for name, rounds in found.items()}
        text = ", ".join(f"{name} {median:.3f} {unit}" for name, median in medians.items())
        ratio = f", ratio {medians['here'] / medians['against']:.3f}" if "against" in medians else ""
        print(f"{what}: median {text}{ratio}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
