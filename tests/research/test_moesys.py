"""`manage.py reproduce moesys`: every published value has a row, and every check holds."""

from __future__ import annotations

import pytest

from research.executing import Results
from research.figure import Check, Context, FigureReport
from research.moesys import model
from research.moesys.paper import PAPER
from research.moesys.published import TABLE_4, VALUES
from research.papers import PAPERS


@pytest.fixture(scope="module")
def reports() -> list[FigureReport]:
    context = Context(PAPER.published(), Results({}), full=False)
    return [figure.report(context) for figure in PAPER.figures.values()]


def test_every_check_of_moesys_holds(reports: list[FigureReport]) -> None:
    context = Context(PAPER.published(), Results({}), full=False)
    checks: list[Check] = [
        *PAPER.checks(context, reports),
        *(check for report in reports for check in report.checks),
    ]
    assert len(checks) == 19
    assert [check.name for check in checks if check.met is not True] == []


def test_every_published_value_of_moesys_has_a_row(reports: list[FigureReport]) -> None:
    rows = [row for report in reports for row in report.rows]
    assert {(row.figure, row.series, row.x) for row in rows} == set(VALUES)
    assert all((row.ours is None) == bool(row.missing) for row in rows)


def test_fitted_values_of_moesys_are_marked(reports: list[FigureReport]) -> None:
    fitted = {
        (row.figure, row.series.split(",")[0])
        for report in reports
        for row in report.rows
        if not row.by_published_rules
    }
    assert fitted == {
        ("sizes", "GB of a GPU"),
        ("training", "Tokens per second"),
        ("training", "MoESys over DeepSpeed"),
        ("elastic", "Samples per second"),
        ("elastic", "Gain of each GPU"),
        ("all_to_all", "Communication over flat"),
        ("all_to_all", "Step over flat"),
        ("inference", "MoESys over DeepSpeed"),
    }


def test_the_spine_follows_from_the_published_gain() -> None:
    """By both readings of 15.5 %."""
    assert model.spine_with_gain(1.155) == pytest.approx(0.751, abs=1e-3)
    assert model.spine_with_gain(1 / 0.845) == pytest.approx(0.731, abs=1e-3)
    assert model.communication_share() == pytest.approx(0.664, abs=1e-3)


def test_fitted_laws_are_those_of_the_specification() -> None:
    moesys, deep_speed = model.laws()["MoESys"], model.laws()["DeepSpeed"]
    assert (moesys.computing, moesys.leaving) == pytest.approx((257.37, 16.73), abs=0.01)
    assert (deep_speed.computing, deep_speed.leaving) == pytest.approx((332.07, 53.28), abs=0.01)
    assert moesys.straggling == deep_speed.straggling == pytest.approx(4.471, abs=1e-3)
    cost = model.step_cost()
    assert (cost.fixed_seconds, cost.seconds_per_load) == pytest.approx((0.9435, 6.1444e-3), rel=1e-3)


def test_the_stand_in_of_the_ring_has_its_sizes() -> None:
    assert model.RING_SHAPE.sizes.parameters / 1e9 == pytest.approx(59.0, abs=0.05)
    assert model.ring_memory(12).layer_bytes == pytest.approx(302e6, rel=1e-3)
    savings = [model.ring_memory(sections).saving for sections in (12, 8, 4, 2)]
    assert savings == pytest.approx([0.319, 0.425, 0.531, 0.584], abs=1e-3)


def test_published_gains_of_the_table_follow_the_width() -> None:
    assert model.inference_factors() == pytest.approx((1.058, 1.031, 1.040), abs=1e-3)
    by_width = {2048: 1.04, 4096: 1.105, 8192: 1.15}
    for (_, hidden), row in TABLE_4.items():
        assert row[3] / row[2] == pytest.approx(by_width[hidden], abs=0.011)


def test_moesys_is_a_registered_paper() -> None:
    assert PAPERS["moesys"] is PAPER
