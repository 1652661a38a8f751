"""Try a function on this machine, without a platform.

    python -m workers.runtime.try_function SOURCE --batch-size 64 --iterations 300 --workers 1,2,4

trains it twice: once on one worker, and once handing it from 1 to 2 to 4 workers on the way. Both runs must
see the same samples in the same order; their losses differ by rounding alone if the function does not depend
on how a batch is split.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from punctual.bundles.predict import not_deployable
from punctual.function import set_folders
from punctual.protocol.hyperparameters import read_settings
from punctual.protocol.limits import TENSORS_NAMED
from workers.runtime.at_home.local_agent import Generation, LocalAgent
from workers.runtime.at_home.local_worker import Message, WorkerEndedError
from workers.runtime.at_home.own_function import find_data, read_function_source, read_source, write_files
from workers.runtime.failures import WorkerFailureError
from workers.serving.try_predict import load_predict, read_tried_inputs, try_predict

_PATIENCE_SECONDS = 3600.0


def find_entry(source: Path) -> str:
    """Return `module:Class` of the class in a file, zip or folder that the platform would train.

    Raises:
        ValueError: there is none, or more than one.
    """
    return read_source(source)[1]


def train_unscaled(agent: LocalAgent, source: Path, assignment: Message) -> Message:
    """Train on one worker from beginning to end; return metrics.json."""
    generation = agent.start_generation(source, assignment, 1, seconds=_PATIENCE_SECONDS)
    generation.wait_until_ready(_PATIENCE_SECONDS)
    report = generation.train_from_nothing().report(_PATIENCE_SECONDS)
    generation.leader.end()
    return report


def train_rescaled(
    agent: LocalAgent, source: Path, assignment: Message, worlds: Sequence[int]
) -> tuple[Message, list[float]]:
    """Train on `worlds[0]` workers, then `worlds[1]`, …; return metrics.json and the pauses in seconds.

    All generations are prepared before the first one trains: a short run could end before its successor is
    ready.

    Raises:
        ValueError: the training ended before it could be handed over.
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
    """Return whether a worker reports at least `iteration` iterations, or the end of training."""
    trained = message.get("phase") == "training" and message["iteration"] >= iteration
    return trained or message.get("file", {}).get("kind") == "final"


def _pause_of_handover(current: Generation, coming: Generation) -> float:
    """Return the seconds between the last iteration of one generation and the first of the next."""
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
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="workers.runtime.try_function", description=__doc__.splitlines()[0])
    parser.add_argument("file", metavar="SOURCE", type=Path, help="a .py, a .zip or a folder")
    parser.add_argument("--entry", help="module:Class (default: the one TrainingFunction)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument(
        "--workers", default="1,2", help="numbers of workers to train with in turn (default: 1,2)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hyperparameters", type=json.loads, default={}, help="JSON")
    parser.add_argument("--predict", metavar="INPUTS", help="a JSON list of inputs for the trained model")
    arguments = parser.parse_args()
    try:
        comparison, is_fine = _try(arguments)
    except (ValueError, OSError, WorkerEndedError, WorkerFailureError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    print(comparison)  # noqa: T201
    return 0 if is_fine else 1


def _try(arguments: argparse.Namespace) -> tuple[str, bool]:
    """Train twice; return the comparison with `predict`'s answers, and whether all inputs were answered."""
    if not isinstance(arguments.hyperparameters, dict):
        raise ValueError("--hyperparameters must be a JSON object, such as '{\"learning_rate\": 0.1}'")
    hyperparameters = {**arguments.hyperparameters, "global_batch_size": arguments.batch_size}
    if arguments.iterations < 1:
        raise ValueError("--iterations must be at least 1")
    worlds = _read_worlds(arguments.workers)
    read_settings(hyperparameters)
    inputs = None if arguments.predict is None else read_tried_inputs(arguments.predict)
    files, entry, predict_problem = read_function_source(arguments.file, arguments.entry)
    if inputs is not None and predict_problem:
        raise ValueError(not_deployable(entry, predict_problem))
    assignment: dict[str, Any] = {
        "function": {"entry": entry},
        "hyperparameters": hyperparameters,
        "termination": {"max_iterations": arguments.iterations, "target": None},
        "seed": arguments.seed,
    }
    with (
        tempfile.TemporaryDirectory(prefix="punctual-") as folder,
        LocalAgent(data=find_data(arguments.file)) as agent,
    ):
        bundle = write_files(files, Path(folder))
        unscaled = train_unscaled(agent, bundle, assignment)
        box = agent.workers[0].box
        rescaled, pauses = train_rescaled(agent, bundle, assignment, worlds)
        said = [_comparison(unscaled, rescaled, pauses)]
        if inputs is None:
            return said[0], True
        set_folders(box / "data", box / "out")
        weights = box / "out" / "final" / "weights.pt"
        predict = load_predict(box, entry, hyperparameters, arguments.seed, weights)
        answers, is_fine = try_predict(predict, inputs)
    return "\n".join([*said, answers]), is_fine


def _read_worlds(text: str) -> list[int]:
    worlds = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if min(worlds) < 1:
        raise ValueError(f"--workers must be whole numbers from 1 with commas, such as 1,2,4, not {text!r}")
    return worlds


def _comparison(unscaled: Message, rescaled: Message, pauses: Sequence[float]) -> str:
    lines = [f"{'':24}{'one worker':>16}{'rescaled':>16}"]
    for name, value in unscaled["final"].items():
        lines.append(f"{name:24}{_number(value):>16}{_number(rescaled['final'].get(name)):>16}")
    same = unscaled["sample_order_digest"] == rescaled["sample_order_digest"]
    lines.append(f"same samples in the same order: {'yes' if same else 'NO'}")
    if bad := rescaled["nonfinite_weights"]:
        lines.append(f"weights that are NaN or infinite: {', '.join(bad[:TENSORS_NAMED])}")
    lines.append("pauses: " + ", ".join(f"{pause:.3f} s" for pause in pauses))
    return "\n".join(lines)


def _number(value: float | None) -> str:
    """Format a number of `metrics.json`, where null stands for NaN and infinity."""
    return "not finite" if value is None else f"{value:.8g}"


if __name__ == "__main__":
    sys.exit(main())
