"""Whether a class can be deployed, read from the syntax tree."""

from __future__ import annotations

import pytest

from punctual.bundles.layout import read_function

METHODS = """
    def init_model(self): ...
    def init_dataset(self): ...
    def init_optimizer(self, model): ...
    def train(self, batch, model): ...
"""


def problem_of(source: str, entry: str = "model:Model") -> str:
    """Return why the class cannot be deployed."""
    _, facts = read_function({"model.py": f"from punctual import TrainingFunction\n{source}".encode()}, entry)
    return facts.predict_problem


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("self, batch, model", ""),
        ("self, inputs, net, /, temperature=1.0", ""),
        ("self, *arguments", ""),
        ("self, batch, model, *, scale=1", ""),
        ("self, batch", "it is predict(self, batch)"),
        ("batch, model", "it is predict(batch, model)"),
        ("self, batch, model, scale", "it is predict(self, batch, model, scale)"),
        ("self, batch, model, *, scale", "it is predict(self, batch, model, *, scale)"),
    ],
)
def test_predict_is_called_with_three_arguments(arguments: str, problem: str) -> None:
    source = f"class Model(TrainingFunction):{METHODS}    def predict({arguments}): ..."
    assert problem_of(source) == problem


def test_predict_may_be_inherited() -> None:
    base = f"class Base(TrainingFunction):{METHODS}    def predict(self, batch, model): ...\n"
    assert problem_of(f"{base}class Model(Base): ...") == ""
    assert problem_of(f"{base}class Model(Base):\n    def predict(self): ...") == "it is predict(self)"
    library = "import library\nclass Model(library.Base, TrainingFunction): ..."
    assert problem_of(library) == "", "a base from a library may define it"
    assert problem_of(f"class Model(TrainingFunction):{METHODS}") == "it is not defined"
