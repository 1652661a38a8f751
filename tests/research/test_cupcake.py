"""`manage.py reproduce cupcake`: every published value has a row, and every check holds."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command

from research.cupcake.model import CODECS, ONE_SERVER, VARIANTS, evaluated
from research.cupcake.published import NAMES, VALUES

# It plans the fusion of all models for every number of workers: half a minute and more.
whole = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cupcake")
    call_command(
        "reproduce", "cupcake", "--folder", str(folder), "--json", str(folder / "out.json"),
        stdout=io.StringIO(), stderr=io.StringIO(),
    )  # fmt: skip
    assert (folder / "report-cupcake.html").exists()
    return json.loads((folder / "out.json").read_text())


@whole
def test_everything_that_should_hold_does(found):
    checks = [*found["checks"], *(check for figure in found["figures"] for check in figure["checks"])]
    assert len(checks) == 12
    assert [check["name"] for check in checks if check["met"] is not True] == []


@whole
def test_every_published_value_has_a_row_and_every_deviation_a_cause(found):
    rows = [row for figure in found["figures"] for row in figure["rows"]]
    assert {(row["figure"], row["quantity"], row["x"]) for row in rows} == set(VALUES)
    assert found["counts"]["unexplained"] == 0
    calibrated = {(row["figure"], row["quantity"], row["x"]) for row in rows if row["calibrated"]}
    assert calibrated == {
        ("one_server", "FP32, scaling factor", "ResNet50"),
        ("eight_servers", "over FP32", "ResNet50"),
    }
    missing = {row["quantity"] for row in rows if row["ours"] is None}
    assert missing == {"Accuracy with Cupcake over FP32"}
    assert all(row["missing"] for row in rows if row["ours"] is None)


@pytest.mark.parametrize("variant", VARIANTS)
def test_charged_costs_widen_the_gap_to_layer_wise_compression(variant):
    for model in NAMES:
        for codec in CODECS:
            plain = evaluated(ONE_SERVER, model, codec)
            charged = evaluated(ONE_SERVER, model, codec, VARIANTS[variant])
            assert charged.over("GRACE") >= plain.over("GRACE") - 1e-9
            assert charged.scaling("Cupcake") <= plain.scaling("Cupcake") + 1e-9
