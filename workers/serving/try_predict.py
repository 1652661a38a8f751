"""Calls a function's `predict` on this machine as a replica does, and reports the outcome of each input."""

from __future__ import annotations

import json
import queue
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from workers.runtime.failures import first_line
from workers.runtime.function.function_loading import load_function
from workers.serving.application import ProblemError, read_inputs
from workers.serving.batching import Outcome, Request
from workers.serving.counting import Counts
from workers.serving.errors import BadInputError
from workers.serving.limits import ServingLimits
from workers.serving.predicting import Predict, Predictor
from workers.serving.serving_model import load_model

_SHOWN_CHARACTERS = 200


def read_tried_inputs(text: str) -> list[Any]:
    """Read a JSON list of inputs, within the bounds of a request. Raises ValueError."""
    try:
        return read_inputs(f'{{"inputs": {text}}}'.encode())
    except ProblemError as error:
        raise ValueError(f"--predict takes a JSON list of inputs, such as '[1, 2]'. {error}") from error


def load_predict(box: Path, entry: str, hyperparameters: dict[str, Any], seed: int, weights: Path) -> Predict:
    """Load the function of a box with these weights on the CPU. Raises WorkerFailureError."""
    function = load_function(box, entry, hyperparameters, seed)
    return load_model(function, entry, seed, weights, torch.device("cpu")).predict


def try_predict(
    predict: Predict, inputs: Sequence[Any], seconds: float = ServingLimits().predict_seconds
) -> tuple[str, bool]:
    """Call `predict` with all inputs together, as in one request, and with each as a request of its own.

    Args:
        seconds: after which calls count as one that does not return.

    Returns:
        A line for each input, and whether a deployment would answer all of them.
    """
    predictor = Predictor(predict, Counts(), generation=1)
    found: queue.SimpleQueue[list[Outcome]] = queue.SimpleQueue()
    predictor.start()
    predictor.begin([_request(inputs)], found.put)
    predictor.begin([_request([value]) for value in inputs], found.put)
    try:
        (together,), alone = found.get(timeout=seconds), found.get(timeout=seconds)
    except queue.Empty:
        return f"predict() did not return within {seconds:g} s. It is here:\n{predictor.where()}", False
    lines = [
        f"predict({_short(value)}): {_told(outcome)}" for value, outcome in zip(inputs, alone, strict=True)
    ]
    is_fine = all(isinstance(outcome, bytes) for outcome in alone)
    if is_fine and not isinstance(together, bytes):
        # A deployment computes requests together, too.
        lines.append(f"all {len(inputs)} inputs together: {_told(together)}")
        is_fine = False
    return "\n".join(lines), is_fine


def _request(inputs: Sequence[Any]) -> Request:
    return Request(inputs, 0.0, lambda _: None)


def _told(outcome: Outcome) -> str:
    if isinstance(outcome, bytes):
        return _short(json.loads(outcome)["outputs"][0])
    status = "400, refused" if isinstance(outcome, BadInputError) else "500, failed"
    return f"{status}: {first_line(outcome)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
