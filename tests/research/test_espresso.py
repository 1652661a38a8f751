"""`manage.py reproduce espresso`: every row beside what was published, and what must hold."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command

from research.espresso import model
from research.espresso.published import VALUES
from research.espresso.specs import SelectionSpec

# It selects for 37 workloads with all their variants: half a minute on a machine with nothing else to do.
whole = pytest.mark.slow
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("espresso")
    call_command(
        "reproduce", "espresso", "--folder", str(folder), "--json", str(folder / "out.json"),
        stdout=io.StringIO(), stderr=io.StringIO(),
    )  # fmt: skip
    return json.loads((folder / "out.json").read_text())


@whole
def test_everything_that_should_hold_does(found):
    checks = [*found["checks"], *(check for figure in found["figures"] for check in figure["checks"])]
    assert len(checks) > 25
    assert [check["name"] for check in checks if check["met"] is not True] == []
    assert found["left_out"] == []


@whole
def test_every_published_value_has_a_row_and_every_deviation_a_cause(found):
    rows = [row for figure in found["figures"] for row in figure["rows"]]
    assert {(row["figure"], row["quantity"], row["x"]) for row in rows} == set(VALUES)
    assert found["counts"]["unexplained"] == 0
    # The page marks fitted values, so that they do not look like results.
    assert {row["quantity"] for row in rows if row["calibrated"]} == {"FP32 scaling factor"}


@whole
def test_espressos_own_ratios_are_within_the_accepted_band(found):
    (throughput,) = (figure for figure in found["figures"] if figure["name"] == "throughput")
    ratios = [row["ours_over_published"] for row in throughput["rows"] if row["quantity"] == "Espresso"]
    assert len(ratios) == len(model.WORKLOADS)
    assert all(0.8 <= ratio <= 1.2 for ratio in ratios)


def test_run_description_names_its_parameters():
    own = SelectionSpec("LSTM")
    other = SelectionSpec("LSTM", codec="dgc", platform=model.NVLINK)
    assert own.used() == model.WORKLOADS["LSTM"]
    assert (other.used().codec, other.used().between_gbps) == ("dgc", 20.0)
    assert "64 GPUs, NVLink" in other.described()
    assert own.key() != other.key()
