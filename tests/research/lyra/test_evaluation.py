"""`manage.py reproduce lyra`: ratios with intervals, required relations, and the command."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from research.executing import Results, make_results
from research.figure import Context, Published
from research.lyra.checks import must_hold
from research.lyra.figures import FIGURES
from research.lyra.measuring import JCT, WAITING, mean_ratio, pairs_of, percentile_ratio
from research.lyra.published import BASELINE as TOLD
from research.lyra.published import (
    NOT_TO_CHASE,
    PERCENTILE_SHARES,
    TABLE_35,
    TABLE_38,
    mean_of_last_hundredth,
)
from research.lyra.schemes import BASELINE, SCALED, SCHEMES, SEEDS, baseline_of, specs_of
from research.lyra.specs import LyraSpec, Size, fitted, resampled, settings_of, workload_of
from research.store import RunResult
from simulation.workloads.linear import linear_workload

TINY = Size(4, 4, "lyra_testbed:jobs=30")


def result(
    waiting: list[float], jct: list[float], *, preemptions: int = 0, overall: float = 0.5
) -> RunResult:
    """A result of jobs submitted a quarter of a day apart."""
    submitted = [float(21_600 * row) for row in range(len(waiting))]
    return RunResult(
        {"preemptions": preemptions, "on_loan_gpu_usage": 0.9, "jobs": len(waiting)},
        {"overall_usage": overall, "unfinished": 0},
        {"submitted_seconds": submitted, WAITING: waiting, JCT: jct},
    )


def made_up(**by_scheme: RunResult) -> Context:
    """Results of some schemes, the same for every seed."""
    schemes = {"baseline": BASELINE, **SCHEMES}
    results: dict[Any, RunResult] = {
        schemes[name].spec(SCALED, seed): value for name, value in by_scheme.items() for seed in SEEDS
    }
    return Context(Published({}, "by hand"), Results(results), full=False)


def test_ratio_is_of_sums_over_seeds_and_lies_within_its_interval() -> None:
    slower, faster = result([10, 20, 30, 40], [1] * 4), result([5, 10, 15, 20], [1] * 4)
    ratio = mean_ratio([(slower, faster), (slower, faster)], WAITING)
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert ratio.by_seed == (2.0, 2.0)
    assert ratio.above_one
    uneven = mean_ratio([(slower, result([40, 30, 20, 10], [1] * 4))], WAITING)
    assert uneven is not None
    assert uneven.low < 1.0 < uneven.high, "the order of two equal means is not told"
    assert percentile_ratio([(slower, faster)], WAITING, 50) == pytest.approx(2.0)
    assert mean_ratio([], WAITING) is None


def test_requirement_shows_figures_and_is_unknown_without_runs() -> None:
    better, worse = result([1] * 8, [50] * 8, overall=0.6), result([10] * 8, [100] * 8, overall=0.5)
    checks = {check.name: check for check in must_hold(made_up(basic=better, baseline=worse))}
    assert checks["Must hold: queuing time basic < baseline"].met
    assert "ratio 10.00" in checks["Must hold: queuing time basic < baseline"].figures
    assert checks["Must hold: overall usage ideal > basic > baseline"].met is None
    counted = made_up(
        loaning=result([1], [1], preemptions=3),
        loaning_scf=result([1], [1], preemptions=6),
        loaning_random=result([1], [1], preemptions=6),
    )
    name = "Must hold: preemptions per job loaning < loaning_scf < loaning_random"
    assert next(check for check in must_hold(counted) if check.name == name).met is False


def test_the_published_tables_agree_with_each_other_where_they_should() -> None:
    waits, takes = TABLE_38["baseline"]
    assert (waits[0], waits[2], takes[0], takes[2]) == (
        TOLD.queuing_p50,
        TOLD.queuing_p95,
        TOLD.jct_p50,
        TOLD.jct_p95,
    )
    lyra = TABLE_38["scaling"]
    assert TOLD.queuing_p95 / lyra[0][2] == pytest.approx(TABLE_35["scaling"].queuing_p95, abs=0.01)
    assert set(TABLE_35) - {"tuned", "pollux"} <= set(SCHEMES)
    assert all(reason.endswith((".", "(A23).")) for reason in NOT_TO_CHASE.values())


def test_published_means_and_percentiles_bound_the_last_hundredth() -> None:
    baseline = mean_of_last_hundredth(TOLD.queuing_mean, TABLE_38["baseline"][0])
    scaling = mean_of_last_hundredth(
        TOLD.queuing_mean / TABLE_35["scaling"].queuing_mean, TABLE_38["scaling"][0]
    )
    assert baseline == pytest.approx((32_718, 234_557), abs=1)
    assert scaling == pytest.approx((103_357, 198_541), abs=1)


@given(st.lists(st.integers(0, 10**6), min_size=100, max_size=400))
def test_no_sample_is_beyond_the_bounds_of_its_last_hundredth(sample: list[int]) -> None:
    values = np.sort(np.array(sample * 100, dtype=float))
    percentiles = [int(values[round(share * values.size)]) for share in PERCENTILE_SHARES]
    low, high = mean_of_last_hundredth(float(values.mean()), percentiles)
    last = float(values[round(0.99 * values.size) :].mean())
    # Between two percentiles the values themselves are, so only what a float loses is left.
    assert low * (1 - 1e-9) - 1e-6 <= last <= high * (1 + 1e-9) + 1e-6


def test_every_figure_names_its_runs_and_reports_without_any() -> None:
    for figure in FIGURES.values():
        specs = figure.runs(False)
        assert len(specs) == len(set(specs)), figure.name
        empty = figure.report(Context(Published({}, "nothing"), Results(), full=False))
        assert all(check.met is None for check in empty.checks if specs), figure.name


def test_baseline_has_the_same_jobs_and_no_options() -> None:
    spec = replace(SCHEMES["ideal"].spec(SCALED, 2), rules=(("gain", 0.8),), days=(3, 3))
    base = baseline_of(spec)
    assert (base.policy, base.loaning, base.scaling, base.rules) == ("fifo", False, False, ())
    assert (base.size, base.seed, base.days) == (spec.size, spec.seed, spec.days)
    assert [run.policy for run in specs_of(("basic",), full=False)] == ["fifo"] * 3 + ["lyra"] * 3


def test_settings_carry_every_choice() -> None:
    spec = replace(
        SCHEMES["loaning"].spec(SCALED), rules=(("gain", 0.8),),
        two_phase=(("naive", 1.0), ("ageing_weight", 0.5)),
        expansion=2, slot_seconds=15.0,
    )  # fmt: skip
    settings = settings_of(spec)
    sharing = settings.sharing
    assert sharing is not None
    assert sharing.rules is not None
    assert sharing.lending is not None
    assert (settings.slot_seconds, sharing.expansion, sharing.rules.gain) == (15.0, 2, 0.8)
    assert (sharing.two_phase.naive, sharing.two_phase.ageing_weight) == (True, 0.5)


def test_a_trace_is_brought_to_the_load_that_is_asked_for() -> None:
    day = 86_400.0
    times = day * np.arange(100, dtype=np.float64)
    raw = linear_workload(
        "raw", "by hand", np.asarray(times, np.float64), np.full(100, 8), np.full(100, 10_000.0)
    )
    cut = fitted(raw, 0.5, gpus=8, days=5.0)
    assert cut.jobs == 22, "half of 8 GPUs over five days is 21.6 such jobs"
    assert cut.submitted_at[-1] == pytest.approx(5 * day)


def test_one_job_of_a_hundred_is_large_and_adds_little_work() -> None:
    usual = BASELINE.spec(replace(SCALED, trace="lyra_scaled:jobs=1000"))
    small, large = workload_of(usual), workload_of(replace(usual, large_jobs=0.65))
    asked = np.flatnonzero(large.requested_gpus != small.requested_gpus)
    assert asked.size <= 10
    assert int((large.requested_gpus == 36 * 8).sum()) == 10, "36 of 55 servers"
    assert np.array_equal(large.submitted_at, small.submitted_at)
    assert np.array_equal(large.requested_seconds, small.requested_seconds)
    assert large.requested_seconds[asked].max() <= 1_100.0
    work = [
        float((workload.requested_gpus * workload.requested_seconds).sum()) for workload in (small, large)
    ]
    assert work[1] < 1.05 * work[0]


def test_queuing_is_held_against_a_baseline_that_may_be_passed() -> None:
    specs = FIGURES["queuing"].runs(False)
    assert {spec.policy for spec in specs if isinstance(spec, LyraSpec)} == {"fifo_backfill", "sjf", "lyra"}


def test_loans_carry_every_choice() -> None:
    sharing = settings_of(
        replace(SCHEMES["loaning"].spec(SCALED), lending=(("exact_last_pick", 0.0),))
    ).sharing
    assert sharing is not None
    assert sharing.lending is not None
    assert sharing.lending.exact_last_pick is False


def test_days_can_be_drawn_again() -> None:
    day = 86_400.0
    raw = linear_workload(
        "raw",
        "by hand",
        np.array([0.0, 10.0, day, 2 * day + 5]),
        np.ones(4, dtype=np.int64),
        np.full(4, 60.0),
    )
    again = resampled(raw, (2, 0, 0))
    assert again.submitted_at.tolist() == [5.0, day, day + 10, 2 * day, 2 * day + 10]
    assert len(set(again.job_id)) == 5


def test_a_run_is_kept_and_used_again(tmp_path: Any) -> None:
    specs = [BASELINE.spec(TINY), SCHEMES["basic"].spec(TINY)]
    first = make_results(specs, tmp_path)
    again = make_results(specs, tmp_path)
    assert (first.reused, again.reused) == (0, 2)
    base, lyra = (first.get(spec) for spec in specs)
    assert base is not None
    assert lyra is not None
    assert len(base.series[JCT]) == workload_of(specs[0]).jobs == 30
    assert again.get(specs[1]) == lyra
    assert pairs_of(first, specs[:1], specs[1:]) == [(base, lyra)]
    assert SCHEMES["basic"].spec(TINY).key() != replace(specs[1], seed=1).key()


def test_the_command_reports_the_worked_examples(tmp_path: Any) -> None:
    said = io.StringIO()
    call_command(
        "reproduce", "lyra", "--only", "examples", "--folder", str(tmp_path), "--json",
        str(tmp_path / "out.json"),
        stdout=said, stderr=io.StringIO(),
    )  # fmt: skip
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["title"] == "Lyra, reproduced"
    assert report["verdicts"]["not_met"] == 0
    assert report["verdicts"]["met"] == 3
    page = (tmp_path / "report-lyra.html").read_text()
    assert "Figure 3.6: the knapsack" in page
    assert "of what should hold is met" in page


def test_unknown_figure_is_refused_with_the_known_names() -> None:
    with pytest.raises(CommandError, match="table35"):
        call_command("reproduce", "lyra", "--only", "fig8a")


def test_spec_description_is_one_line() -> None:
    text = replace(SCHEMES["loaning_scf"].spec(SCALED), days=(1, 2)).described()
    assert "55 + 65 servers of 8 GPUs" in text
    assert "loaning on, scf" in text
    assert "\n" not in text
    assert isinstance(BASELINE.spec(SCALED), LyraSpec)
