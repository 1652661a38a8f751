"""`manage.py reproduce zen`: every row beside the published value, and a training that loses gradients."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command

from communication.zen.schemes import Scheme
from research.store import RunResult
from research.zen import model
from research.zen.figures import FIGURES, accuracy, training
from research.zen.published import VALUES
from research.zen.specs import TrainingSpec
from research.zen.two_towers import train

#: The whole reproduction takes ten seconds of a processor.
whole = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zen")
    call_command(
        "reproduce", "zen", "--folder", str(folder), "--json", str(folder / "out.json"),
        stdout=io.StringIO(), stderr=io.StringIO(),
    )  # fmt: skip
    return json.loads((folder / "out.json").read_text())


@whole
def test_everything_that_should_hold_does(found):
    checks = [*found["checks"], *(check for figure in found["figures"] for check in figure["checks"])]
    assert len(checks) > 50
    assert [check["name"] for check in checks if check["met"] is not True] == []


@whole
def test_every_published_value_has_a_row_and_every_deviation_a_cause(found):
    rows = [row for figure in found["figures"] for row in figure["rows"]]
    assert {(row["figure"], row["quantity"], row["x"]) for row in rows} == set(VALUES)
    assert found["counts"]["unexplained"] == 0
    # The page marks fitted values, so that they do not look like results.
    calibrated = {(row["quantity"], row["x"].split(",")[0]) for row in rows if row["calibrated"]}
    assert calibrated == {
        ("Balanced Parallelism over dense", "NMT"),
        ("Dense all-reduce of the embedding, ms", "DeepFM"),
        *(("Zen over all-reduce", name) for name in model.MODELS),
    }


def test_nothing_that_is_compared_was_fitted_to_itself():
    """Compute time is fitted to one ratio per model and each beta to one value; all other claims are
    results."""
    claims = {(name, rival, testbed) for name, rival, testbed, _, _ in training.CLAIMS}
    fitted = {(name, Scheme.DENSE, testbed) for name, (testbed, _) in model.FITTED_TRAINING.items()}
    assert fitted < claims
    assert len(claims - fitted) == 7
    for name, (testbed, ratio) in model.FITTED_TRAINING.items():
        speedup = model.training_speedup(model.MODELS[name], Scheme.DENSE, testbed)
        assert speedup == pytest.approx(ratio)
        assert model.compute_seconds(name, testbed) > 0.0


def test_betas_are_those_of_the_end_points_or_fitted():
    assert model.fitted_beta("BERT") == pytest.approx(0.75235, abs=5e-6)
    assert model.fitted_beta("NMT") == pytest.approx(0.66267, abs=5e-6)
    assert model.embedding_speedup(model.LSTM, Scheme.ZEN) == pytest.approx(6.77)
    assert model.embedding_speedup(model.DEEPFM, Scheme.ZEN) == pytest.approx(2.10)


def test_a_strawman_is_behind_dense_and_zen_is_not():
    dense, zen = (train(scheme, 0.0, 60, seed=3) for scheme in ("dense", "zen"))
    assert zen.losses == dense.losses
    assert zen.lost_share == 0.0
    lossy = train("strawman", 1.0, 60, seed=3)
    assert lossy.lost_share == pytest.approx(1 - (1 - 0.3679), abs=0.03)
    assert lossy.losses[-1] > dense.losses[-1]
    with pytest.raises(ValueError, match="no training with 'other'"):
        train("other", 0.0, 1, seed=0)


def test_a_training_is_kept_by_what_determines_it():
    spec = TrainingSpec("strawman", 2.0)
    assert spec.key() == TrainingSpec("strawman", 2.0).key()
    others = {
        TrainingSpec("strawman", 4.0).key(),
        TrainingSpec("zen").key(),
        TrainingSpec("zen", seed=1).key(),
    }
    assert spec.key() not in others
    assert len(others) == 3


def test_missing_trainings_leave_checks_open():
    specs = accuracy._specs(False)
    assert len(accuracy.runs(True)) == 3 * len(specs)
    result = RunResult({"loss": 1.0}, {"lost_share": 0.0}, {"losses": [1.0] * 400})
    partial = dict.fromkeys(specs[:2], result)
    assert [check.met for check in accuracy._checks(partial, len(specs))] == [None, None]


def test_figures_are_known_by_name():
    assert set(FIGURES) == {
        "characteristics", "schemes", "hashing", "balance", "formats", "embeddings", "training", "accuracy",
        "planning",
    }  # fmt: skip
