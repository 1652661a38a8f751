"""`manage.py reproduce lina`: every published value has a row, and every check holds."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command

from research.lina import specs
from research.lina.published import VALUES
from research.sources import imported_by

#: The whole reproduction takes a quarter of a minute of a processor.
whole = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lina")
    call_command(
        "reproduce", "lina", "--folder", str(folder), "--json", str(folder / "out.json"),
        stdout=io.StringIO(), stderr=io.StringIO(),
    )  # fmt: skip
    assert (folder / "report-lina.html").exists()
    return json.loads((folder / "out.json").read_text())


@whole
def test_every_check_of_lina_holds(found):
    checks = [check for figure in found["figures"] for check in figure["checks"]]
    assert len(checks) == 35
    assert [check["name"] for check in checks if check["met"] is not True] == []


@whole
def test_every_published_value_has_a_row_and_a_cause(found):
    rows = [row for figure in found["figures"] for row in figure["rows"]]
    assert {(row["figure"], row["quantity"], row["x"]) for row in rows} == set(VALUES)
    assert found["counts"]["unexplained"] == 0
    assert all(row["ours"] is not None for row in rows)


def test_stored_results_depend_on_the_planners():
    modules = imported_by(specs.__name__)
    assert {"moe.lina.two_phases", "moe.lina.expert_placement", "moe.lina.dispatch"} <= modules


@whole
def test_every_training_time_of_lina_is_marked_as_fitted(found):
    rows = next(figure["rows"] for figure in found["figures"] if figure["name"] == "training")
    assert all(row["calibrated"] for row in rows)
