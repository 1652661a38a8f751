"""Figures from results made by hand: tables, checks over all runs, and the tests of every vector."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from research.elasticflow.acceptance import overall_checks
from research.elasticflow.figures import fig8b, fig9, fig11, vectors
from research.elasticflow.tables import FIGURE_9
from tests.research.elasticflow.small import context, result

ROOT = Path(__file__).resolve().parents[3]


def test_both_means_of_figure_8b_cover_only_traces_with_runs():
    published = {
        ("8b", "ElasticFlow", "cluster10"): 0.9, ("8b", "EDF", "cluster10"): 0.3,
        ("8b", "ElasticFlow", "cluster06"): 0.6, ("8b", "EDF", "cluster06"): 0.1,
        ("8b", "ElasticFlow", "cluster01"): 0.8, ("8b", "EDF", "cluster01"): 0.1,
    }  # fmt: skip
    runs = {}
    for place, flow, met in (("cluster10", 180, 60), ("cluster06", 160, 20)):
        base = fig8b.base(place)
        runs[replace(base, policy="elasticflow")] = result(flow, 200)
        runs[replace(base, policy="edf_artifact")] = result(met, 200)
    report = fig8b.report(context(published, by_spec=runs))
    edf = next(entry for entry in report.tables[0].values if entry["series"] == "EDF")
    assert edf["published"] == {
        "mean_of_ratios": pytest.approx((3 + 6) / 2), "ratio_of_means": pytest.approx(1.5 / 0.4), "traces": 2,
    }  # fmt: skip
    assert edf["ours"] == {
        "mean_of_ratios": pytest.approx((3 + 8) / 2), "ratio_of_means": pytest.approx(340 / 80), "traces": 2,
    }  # fmt: skip
    assert edf["published_ten"]["traces"] == 3


def test_the_ladder_of_figure_9_is_judged_by_the_cluster():
    met = {"edf_artifact": 40, "edf_admission_artifact": 60, "edf_elastic": 50, "elasticflow": 90}
    runs = {replace(fig9.base(8), policy=policy): result(count, 100) for policy, count in met.items()}
    published = {
        ("9", series, f"{gpus} GPUs"): value
        for gpus, row in FIGURE_9.items()
        for series, value in row.items()
    }
    checks = {check.name: check for check in fig9.report(context(published, by_spec=runs)).checks}
    ladder = checks["64 GPUs, as published: each part adds"]
    assert ladder.met is False
    assert ladder.figures == (
        "edf_artifact 0.400 < edf_admission_artifact 0.600 < edf_elastic 0.500 < elasticflow 0.900"
    )
    assert checks["128 GPUs, as published: each part adds"].met is None


def test_best_effort_gains_are_held_against_gandiva_as_published():
    base = fig11.base(10)
    slow, quick = result(1, 2), result(1, 2)
    slow.summary["best_effort_mean_jct_seconds"] = 3000.0
    quick.summary["best_effort_mean_jct_seconds"] = 2000.0
    runs = {replace(base, policy="gandiva_artifact"): slow, replace(base, policy="tiresias"): quick}
    report = fig11.report(context({("11b", "Tiresias", "10%"): 1.44}, by_spec=runs))
    row = next(row for row in report.rows if row.figure == "11b" and row.name == "tiresias, 10%")
    assert row.ours == pytest.approx(1.5)
    assert not row.beyond_band


def test_punctual_is_compared_only_on_the_same_jobs_and_cluster():
    base = fig8b.base("cluster10")
    runs = {
        replace(base, policy="punctual"): result(180, 200),
        replace(base, policy="edf"): result(181, 200),
        replace(base, policy="edf", servers=64): result(200, 200),
        replace(base, policy="edf", deadline_draw=1): result(200, 200),
    }
    check = overall_checks(context({}, by_spec=runs), [])[0]
    assert check.met is False
    assert check.figures == "cluster10 on 32 x 8 GPUs, seed 0: edf 181, punctual 180"


def test_a_late_promise_anywhere_is_reported():
    run = replace(fig8b.base("cluster10"), policy="punctual")
    checks = overall_checks(context({}, by_spec={run: result(180, 200, admitted_late=2)}), [])
    assert (checks[1].met, checks[1].figures) == (False, "punctual on cluster10: 2")


def test_every_vector_is_in_the_test_that_is_named_for_it():
    assert set(vectors.TESTED_BY) == {f"V{number}" for number in range(1, 28)}
    for name, place in vectors.TESTED_BY.items():
        assert int(name[1:]) in vectors_in(ROOT / place), f"{name} in {place}"


def vectors_in(path: Path) -> set[int]:
    """Return the numbers of the vectors that a test file names, ranges (V1-V6) included."""
    numbers = set()
    for first, last in re.findall(r"V(\d+)(?:-V(\d+))?", path.read_text()):
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def test_computed_vectors_hold():
    checks = vectors.report(context({})).checks
    assert all(check.met is not False for check in checks), [check for check in checks if check.met is False]
    assert sum(check.met is True for check in checks) >= 5
