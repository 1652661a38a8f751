"""Try a function on this machine, without a platform.

    python -m workers.runtime.try_function FILE --batch-size 64 --iterations 300 --workers 1,2,4

trains it twice: once on one worker, and once handing it from 1 to 2 to 4 workers on the way. Both runs must
see the same samples in the same order; their losses differ by rounding alone if the function does not depend
on how a batch is split.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from workers.runtime.local_agent import Generation, LocalAgent
from workers.runtime.local_worker import Message, WorkerEndedError

_PATIENCE_SECONDS = 3600.0


def find_entry(source: Path) -> str:
    """`module:Class` of the one class in the file that derives from TrainingFunction.

    Raises:
        ValueError: there is none, or more than one.
    """
    classes = [
        node.name
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.ClassDef)
        and any("TrainingFunction" in ast.unparse(base) for base in node.bases)
    ]
    if len(classes) != 1:
        found = ", ".join(classes) or "none"
        raise ValueError(f"{source} must hold exactly one TrainingFunction (found: {found}); use --entry")
    return f"{source.stem}:{classes[0]}"


def train_unscaled(agent: LocalAgent, source: Path, assignment: Message) -> Message:
    """Train on one worker from beginning to end; returns metrics.json."""
    generation = agent.start_generation(source, assignment, 1, seconds=_PATIENCE_SECONDS)
    generation.wait_until_ready(_PATIENCE_SECONDS)
    report = generation.train_from_nothing().report(_PATIENCE_SECONDS)
    generation.leader.end()
    return report


def train_rescaled(
    agent: LocalAgent, source: Path, assignment: Message, worlds: Sequence[int]
) -> tuple[Message, list[float]]:
    """Train on `worlds[0]` workers, then `worlds[1]`, …; returns metrics.json and the pauses in seconds.

    All generations are prepared before the first one trains: a short run would be over before its successor
    had been.

    Raises:
        ValueError: the training was over before it could be handed over.
    """
    iterations = int(assignment["termination"]["max_iterations"])
    generations = [
        agent.start_generation(
            source, {**assignment, "generation": place + 1}, world_size, seconds=_PATIENCE_SECONDS
        )
        for place, world_size in enumerate(worlds)
    ]
    for generation in generations:
        generation.wait_until_ready(_PATIENCE_SECONDS)
    current = generations[0].train_from_nothing()
    pauses: list[float] = []
    for place, coming in enumerate(generations[1:], start=1):
        current.leader.wait_for(partial(_has_come, iterations * place // len(worlds) // 2), _PATIENCE_SECONDS)
        coming.train_from(current)
        pauses.append(_pause_of_handover(current, coming))
        current.stop()
        current = coming
    return current.report(_PATIENCE_SECONDS), pauses


def _has_come(iteration: int, message: Message) -> bool:
    """Whether a worker says that it has done so many iterations, or all of them."""
    trained = message.get("phase") == "training" and message["iteration"] >= iteration
    return trained or message.get("file", {}).get("kind") == "final"


def _pause_of_handover(current: Generation, coming: Generation) -> float:
    """Seconds between the last iteration of one generation and the first of the next."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if any(file["kind"] == "final" for file in current.leader.of_kind("file")):
            raise ValueError(
                f"All iterations were done on {len(current.workers)} worker(s) before the training could be "
                "handed over: give it more --iterations."
            )
        try:
            return float(coming.leader.wait_for_event("first_iteration", 0.5)["pause_seconds"])
        except WorkerEndedError:
            if coming.leader.process.poll() is not None:
                raise
    raise ValueError("The training was not handed over in time.")


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="workers.runtime.try_function", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--entry", help="module:Class (default: the file's one TrainingFunction)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--workers", default="1,2", help="numbers of workers to go through (default: 1,2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hyperparameters", type=json.loads, default={}, help="JSON")
    arguments = parser.parse_args()
    try:
        assignment: dict[str, Any] = {
            "function": {"entry": arguments.entry or find_entry(arguments.file)},
            "hyperparameters": {**arguments.hyperparameters, "global_batch_size": arguments.batch_size},
            "termination": {"max_iterations": arguments.iterations, "target": None},
            "seed": arguments.seed,
        }
        worlds = [int(part) for part in arguments.workers.split(",")]
        if arguments.iterations < 1 or arguments.batch_size < 1 or min(worlds) < 1:
            raise ValueError("--iterations, --batch-size and each of --workers must be at least 1")
        with LocalAgent() as agent:
            unscaled = train_unscaled(agent, arguments.file, assignment)
            rescaled, pauses = train_rescaled(agent, arguments.file, assignment, worlds)
    except (ValueError, OSError, SyntaxError, WorkerEndedError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    print(_comparison(unscaled, rescaled, pauses))  # noqa: T201
    return 0


def _comparison(unscaled: Message, rescaled: Message, pauses: Sequence[float]) -> str:
    lines = [f"{'':24}{'one worker':>16}{'rescaled':>16}"]
    for name, value in unscaled["final"].items():
        lines.append(f"{name:24}{value:16.8g}{rescaled['final'].get(name, float('nan')):16.8g}")
    same = unscaled["sample_order_digest"] == rescaled["sample_order_digest"]
    lines.append(f"same samples in the same order: {'yes' if same else 'NO'}")
    lines.append("pauses: " + ", ".join(f"{pause:.3f} s" for pause in pauses))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
