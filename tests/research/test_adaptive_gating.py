"""`manage.py reproduce adaptive_gating`: every published value has a row, and every check holds."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command

from research.adaptive_gating.model import EVALUATED
from research.adaptive_gating.published import VALUES


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adaptive_gating")
    call_command(
        "reproduce", "adaptive_gating", "--folder", str(folder), "--json", str(folder / "out.json"),
        stdout=io.StringIO(), stderr=io.StringIO(),
    )  # fmt: skip
    assert (folder / "report-adaptive-gating.html").exists()
    return json.loads((folder / "out.json").read_text())


def test_every_check_of_adaptive_gating_holds(found):
    checks = [check for figure in found["figures"] for check in figure["checks"]]
    assert len(checks) == 17
    assert [check["name"] for check in checks if check["met"] is not True] == []


def test_every_published_value_has_a_row_and_a_cause(found):
    rows = [row for figure in found["figures"] for row in figure["rows"]]
    assert {(row["figure"], row["quantity"], row["x"]) for row in rows} == set(VALUES)
    assert found["counts"]["unexplained"] == 0
    # Its two-expert share is not published, so the printed FLOPs give it.
    assert [(row["figure"], row["x"]) for row in rows if row["calibrated"]] == [("flops", "summarisation")]


def test_published_times_imply_the_shares_of_moe_layers():
    implied = [task.implied_moe_share for task in EVALUATED.values()]
    assert implied == pytest.approx([0.82, 0.83, 0.55, 0.58, 0.48, 0.82], abs=0.01)
