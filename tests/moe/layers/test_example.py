"""The example language model learns, with every gate it offers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = {"global_batch_size": 16, "width": 32, "hidden": 64, "experts": 4, "passages": 256}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    return importlib.import_module("moe_language_model")


@pytest.mark.parametrize("gate", ["adaptive", "top2", "dense"])
def test_example_learns_both_languages(example: Any, gate: str) -> None:
    torch.manual_seed(0)
    function = example.MoELanguageModel({**SMALL, "gate": gate, "learning_rate": 0.01})
    model, data = function.init_model(), function.init_dataset()
    optimizer = function.init_optimizer(model)
    for start in range(0, 256, 8):
        loss, metrics = function.train(data.words[start : start + 8], model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        evaluation = function.evaluate(model)
    # Uniform guesses give log(38) = 3.6.
    assert evaluation["easy_loss"] < 2.2
    assert evaluation["hard_loss"] < 3.1
    assert (gate == "dense") == (metrics["cross_entropy"] == loss)
    if gate == "top2":
        assert evaluation["easy_two_expert_share"] == evaluation["hard_two_expert_share"] == 1
    if gate == "adaptive":
        assert 0 < evaluation["hard_two_expert_share"] < 1


def test_brackets_close_in_order(example: Any) -> None:
    closing = dict(example.BRACKETS)
    data = example.Passages(200, seed=0, hard_share=1.0)
    for passage in data.words.tolist():
        awaited: list[str] = []
        for word in (example.WORDS[place] for place in passage):
            if word in closing:
                awaited.append(closing[word])
            elif word in closing.values():
                assert word == awaited.pop()


@pytest.mark.parametrize("gate", ["adaptive", "top2"])
def test_texts_are_continued_alike_alone_and_together(example: Any, gate: str) -> None:
    torch.manual_seed(0)
    function = example.MoELanguageModel({**SMALL, "gate": gate})
    model = function.init_model().eval()
    texts = ["the small Cat", "three plus four is", "the " * 40]
    with torch.inference_mode():
        together = function.predict(texts, model)
        assert together == [function.predict([text], model)[0] for text in texts]
    for answer in together:
        words = answer.split()
        assert set(words) <= set(example.WORDS)
        assert words.index(".") == len(words) - 1 if "." in words else len(words) == example.ANSWER_WORDS


@pytest.mark.parametrize(
    ("text", "words"), [(3, "a text, such as"), ("  ", "a text, such as"), ("the car", "unknown word 'car'")]
)
def test_other_texts_are_a_value_error(example: Any, text: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        example.MoELanguageModel(SMALL).predict([text], torch.nn.Identity())
