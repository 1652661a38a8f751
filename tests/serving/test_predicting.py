"""Outcomes of each request of a batch, for any behaviour of the function."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
import torch

from workers.serving.batching import Outcome, Request
from workers.serving.counting import Counts
from workers.serving.errors import BadInputError, LateError, PredictionError
from workers.serving.predicting import Predictor


def double(inputs: list[Any]) -> Any:
    if "defect" in inputs:
        raise KeyError("defect")
    if "exit" in inputs:
        sys.exit(3)
    if "wrong" in inputs:
        raise ValueError("wrong is no number")
    return [2 * value for value in inputs]


def outcomes(predict: Any, *requests: list[Any]) -> list[Outcome]:
    batch = [Request(inputs, 0.0, lambda _: None) for inputs in requests]
    return Predictor(predict, Counts(), 3).outcomes(batch)


def answer(*outputs: Any) -> bytes:
    return json.dumps({"outputs": outputs, "generation": 3}).encode()


def test_each_request_gets_its_own_outputs() -> None:
    assert outcomes(double, [1, 2], [3]) == [answer(2, 4), answer(6)]


@pytest.mark.parametrize(
    ("guilty", "kind", "words"),
    [
        ("defect", PredictionError, r"predict\(\): KeyError: 'defect' \(test_predicting.py, line "),
        ("exit", PredictionError, r"sys.exit\(3\)"),
        ("wrong", BadInputError, "^wrong is no number$"),
    ],
)
def test_only_the_failing_request_of_a_batch_fails(guilty: str, kind: type[Exception], words: str) -> None:
    good, failed, other = outcomes(double, [1], [guilty], [2])
    assert (good, other) == (answer(2), answer(4))
    with pytest.raises(kind, match=words):
        raise failed  # type: ignore[misc]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ([1], "returned 1 outputs for 2 inputs"),
        (torch.zeros(3), "returned 3 outputs for 2 inputs"),
        (None, "returned NoneType; it must return a tensor or a list"),
        (torch.tensor(1.0), "returned float"),
        ({0: 1, 1: 2}, "returned dict"),
        ([1.0, float("nan")], "what JSON does not have"),
        ([1, {2}], "a value of type set"),
        (["x" * (9 << 20), 1], "the limit is 8388608"),
    ],
)
def test_wrong_outputs_are_failures_of_the_function(returned: Any, words: str) -> None:
    (failed,) = outcomes(lambda _: returned, [1, 2])
    assert isinstance(failed, PredictionError)
    assert words in str(failed)


def test_nan_in_one_request_spoils_no_other() -> None:
    good, failed = outcomes(lambda _: torch.tensor([1.0, torch.nan]), [1], [2])
    assert good == answer(1.0)
    assert isinstance(failed, PredictionError)


def test_tensors_and_arrays_are_outputs_wherever_they_are() -> None:
    returned = [{"scores": torch.tensor([1, 2])}, np.float32(0.5)]
    assert outcomes(lambda _: returned, [1, 2]) == [answer({"scores": [1, 2]}, 0.5)]


def test_late_request_is_not_tried_again() -> None:
    seen: list[Any] = []

    def predict(inputs: list[Any]) -> Any:
        seen.append(inputs)
        raise KeyError(0)

    batch = [Request([number], 0.0, lambda _: None) for number in range(2)]
    batch[0].settle(LateError("late"))
    Predictor(predict, Counts(), 3).outcomes(batch)
    assert seen == [[0, 1], [1]]


def test_calls_are_counted() -> None:
    counts = Counts()
    batch = [Request(inputs, 0.0, lambda _: None) for inputs in ([1], ["defect"])]
    Predictor(double, counts, 3).outcomes(batch)
    assert counts.report(0)["batches"] == 3
