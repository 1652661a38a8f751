"""The output of `try_function --predict` on a user's machine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from workers.serving.try_predict import load_predict, read_tried_inputs, try_predict

FUNCTION = Path(__file__).parent / "functions" / "scaler.py"


def test_stored_weights_answer_as_a_replica_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "scaler_at_home.py").write_text(FUNCTION.read_text())
    monkeypatch.syspath_prepend(str(tmp_path / "bundle"))
    weights = tmp_path / "weights.pt"
    torch.save({"weight": torch.tensor([[3.0]])}, weights)
    predict = load_predict(tmp_path, "scaler_at_home:Scaler", {}, 0, weights)
    assert try_predict(predict, [1, 2]) == ("predict(1): 3.0\npredict(2): 6.0", True)
    said, is_fine = try_predict(predict, [1, "one", 13])
    assert not is_fine
    good, refused, failed = said.splitlines()
    assert good == "predict(1): 3.0"
    assert refused.startswith('predict("one"): 400, refused: an input must be a number')
    assert failed.startswith("predict(13): 500, failed: predict(): RuntimeError: thirteen is a defect")


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ([1], "returned 1 outputs for 2 inputs"),
        ([float("nan"), 1], "what JSON does not have"),
        ([{1}, 1], "a value of type set"),
        (None, "returned NoneType"),
    ],
)
def test_wrong_output_is_named(returned: Any, words: str) -> None:
    said, is_fine = try_predict(lambda inputs: returned, [1, 2])
    assert (words in said, is_fine) == (True, False)


def test_call_that_does_not_return_is_shown_with_its_line() -> None:
    never = threading.Event()
    said, is_fine = try_predict(lambda inputs: never.wait(), [1], seconds=0.2)
    never.set()
    assert not is_fine
    assert "did not return within 0.2 s" in said
    assert "never.wait()" in said


@pytest.mark.parametrize("text", ["3", "[]", "[NaN]", "[1", '["a"], "more": [1]'])
def test_text_other_than_a_list_of_inputs_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--predict takes a JSON list of inputs"):
        read_tried_inputs(text)
