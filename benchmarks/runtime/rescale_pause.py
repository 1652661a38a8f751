"""Pause of training when a job moves to other workers: a handover against a cold restart.

Both move the same running job from one set of workers to another. Time counts from the order to train, sent
to the new workers (handover), or the order to stop, sent to the old ones (cold restart), until the new
generation's first iteration:

* handover: the new workers are warm and ready, the state is passed through memory;
* cold restart: the old workers write a checkpoint and end, new processes start, import PyTorch, build
  everything, load the checkpoint.

    python -m benchmarks.runtime.rescale_pause [--rounds 5] [--workers 2]
        [--function examples/character_model.py] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

from workers.runtime.at_home.local_agent import Generation, LocalAgent
from workers.runtime.at_home.local_worker import Message
from workers.runtime.try_function import find_entry

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
AIM = 0.2


def start(
    agent: LocalAgent, source: Path, assignment: Message, generation: int, world_size: int
) -> Generation:
    """Start a generation and return it when it is ready to train."""
    fresh = agent.start_generation(source, {**assignment, "generation": generation}, world_size)
    return fresh.wait_until_ready()


def handover_pause(agent: LocalAgent, source: Path, assignment: Message, world_size: int) -> float:
    """Return the seconds from ordering both generations until the new one's first iteration."""
    old = start(agent, source, assignment, 1, world_size).train_from_nothing()
    old.wait_for_iteration(5)
    new = start(agent, source, assignment, 2, world_size)
    begun = time.perf_counter()
    new.train_from(old)
    new.leader.wait_for_event("first_iteration")
    pause = time.perf_counter() - begun
    old.stop()
    new.stop()
    return pause


def cold_restart_pause(agent: LocalAgent, source: Path, assignment: Message, world_size: int) -> float:
    """Return the seconds from ordering the old generation to stop until the first iteration of a new one,
    started without anything warm."""
    old = start(agent, source, assignment, 1, world_size).train_from_nothing()
    old.wait_for_iteration(5)
    begun = time.perf_counter()
    old.goal("suspend")
    point = old.checkpoint_files()
    for worker in old.workers:
        worker.end()
    new = start(agent, source, assignment, 2, world_size)
    new.train_from_checkpoint(point)
    new.leader.wait_for_event("first_iteration")
    pause = time.perf_counter() - begun
    new.stop()
    return pause


def main() -> int:
    """Measure alternately and print; return 1 if the aim is missed."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.runtime.rescale_pause", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--function", type=Path, default=EXAMPLES / "character_model.py")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    assignment: Message = {
        "function": {"entry": find_entry(arguments.function)},
        "hyperparameters": {"global_batch_size": arguments.batch_size},
        "termination": {"max_iterations": 10**6, "target": None},
    }
    handovers, restarts = [], []
    for _round in range(arguments.rounds):
        with LocalAgent() as agent:
            handovers.append(handover_pause(agent, arguments.function, assignment, arguments.workers))
        with LocalAgent() as agent:
            restarts.append(cold_restart_pause(agent, arguments.function, assignment, arguments.workers))
    ratio = statistics.median(handovers) / statistics.median(restarts)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "function": arguments.function.name,
        "workers": arguments.workers,
        "handover_seconds": handovers,
        "cold_restart_seconds": restarts,
        "ratio": ratio,
    }
    print(
        f"{arguments.function.name}, {arguments.workers} workers, {arguments.rounds} rounds, "
        f"{result['machine']}"
    )
    print(f"handover     median {statistics.median(handovers):6.3f} s  worst {max(handovers):6.3f} s")
    print(f"cold restart median {statistics.median(restarts):6.3f} s  worst {max(restarts):6.3f} s")
    print(f"ratio        {ratio:.3f} (aim: at most {AIM})")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if ratio <= AIM else 1


if __name__ == "__main__":
    sys.exit(main())
