"""Figures of lending: from a history worked out by hand, and from runs."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

from simulation.loans import LoanHistory, ReclaimRecord
from simulation.outcome import RunOutcome
from simulation.reports.figures import drawings
from simulation.reports.html import report_page
from simulation.reports.parquet import read_parquet, write_parquet
from simulation.reports.summary import summary
from simulation.reports.text import summary_lines
from tests.simulation.lending.worlds import Job, run, usage_of
from tests.simulation.reports.outcomes import best_effort, cluster_rows, outcome

RECLAIMS = (
    ReclaimRecord(900.0, 2, 2, 1, 0, 1, 4, 4, ahead=True),
    ReclaimRecord(1200.0, 2, 2, 0, 1, 1, 2, 0),
)


def lent(reclaims: tuple[ReclaimRecord, ...] = RECLAIMS) -> RunOutcome:
    """Two owned and four inference servers of four GPUs; usage a half, then three quarters. Jobs arrive until
    1,200 s."""
    rows = [
        (300.0, 0.5, 0.5, 2, 0, 8, 0),
        (600.0, 0.5, 0.75, 2, 0, 8, 6),
        (900.0, 0.5, 0.75, 1, 0, 8, 8),
        (1200.0, 0.75, np.nan, 0, 1, 4, 2),
        (1500.0, 0.75, np.nan, 0, 0, 0, 0),
    ]
    history = LoanHistory.of(
        4, rows, reclaims, headroom=0.25, gpus_per_server=4, owned_gpus=8, borrowers=np.array([1])
    )
    jobs = [best_effort("a", 0, 10, 400), best_effort("b", 1200, 1300, 1400)]
    return outcome(jobs, cluster_rows((0.0, 8, 0, 8, 1, 0, 1.0, 0.1)), end_at=1500.0, loans=history)


def test_usage_of_both_clusters_covers_the_arrival_period() -> None:
    facts = summary(lent())
    assert facts["owned_gpu_usage"] == pytest.approx((8 + 8 + 8 + 4) / (4 * 8))
    assert facts["on_loan_gpu_usage"] == pytest.approx((0 + 6 + 8 + 2) / (4 * (0 + 2 + 2 + 1)))
    both = [(8 + 8) / 24, (8 + 6 + 8) / 24, (8 + 8 + 8) / 24, (4 + 2 + 12) / 24]
    assert facts["overall_gpu_usage"] == pytest.approx(np.mean(both))


def test_summary_shows_reclaims_with_their_cost() -> None:
    facts = summary(lent())
    expected = {
        "reclaim_operations": 2, "reclaimed_servers": 4, "reclaim_preemptions": 2,
        "reclaim_collateral": 4 / 16,
        "reclaim_idle_share": 1 / 4, "reclaim_flexible_share": 1 / 4, "reclaim_ahead_share": 1 / 2,
        "reclaim_preempted_share": (1 / 4 + 1 / 2) / 2, "loan_operations": 1, "servers_on_loan_max": 2,
        "shortfall_servers_max": 1, "shortfall_periods": 1,
    }  # fmt: skip
    assert {name: facts[name] for name in expected} == pytest.approx(expected)


def test_a_run_without_loans_has_counts_of_zero_and_no_usage() -> None:
    facts = summary(outcome([best_effort("a", 0, 10, 40)]))
    assert facts["reclaim_operations"] == facts["shortfall_servers_max"] == 0
    assert facts["on_loan_gpu_usage"] is facts["overall_gpu_usage"] is facts["reclaim_collateral"] is None


def test_simulated_loan_appears_in_summary_page_and_parquet(tmp_path) -> None:
    jobs = [Job(5000.0, 1, 1, gpus_per_worker=8), Job(3000.0, 1, 1, 8, submitted_at=300.0, fungible=True)]
    simulated = run(jobs, inference_servers=4, usage=usage_of(0, 0, 0, 0.75, *[0] * 40))
    facts = json.loads(json.dumps(summary(simulated), allow_nan=False))
    assert facts["reclaim_preemptions"] == facts["preemptions"] == 1
    assert facts["preemption_ratio"] == 0.5
    assert 0.0 < facts["mean_gpu_utilisation"] <= 1.0, "GPUs on loan count as present"
    assert facts["mean_waiting_seconds"] > facts["mean_queuing_seconds"], (
        "the job also waited after its preemption"
    )
    assert "jobs preempted" in summary_lines(facts)
    assert simulated.loans is not None
    assert simulated.loans.borrowers.tolist() == [1]
    page = report_page([simulated], title="one loan")
    for name in ("inference-usage", "servers-on-loan", "combined-usage", "reclaims"):
        assert f"run0-{name}" in page
    write_parquet(simulated, tmp_path)
    again = read_parquet(tmp_path).loans
    assert again is not None
    for column in fields(LoanHistory):
        np.testing.assert_array_equal(getattr(again, column.name), getattr(simulated.loans, column.name))


def test_loan_files_of_an_earlier_run_are_removed(tmp_path) -> None:
    write_parquet(lent(), tmp_path)
    write_parquet(outcome([best_effort("a", 0, 10, 40)]), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "allocations.parquet", "cluster.parquet", "jobs.parquet",
    ]  # fmt: skip
    assert read_parquet(tmp_path).loans is None


def test_runs_without_loans_have_no_loan_figures() -> None:
    names = [drawing.name for drawing in drawings(outcome([best_effort("a", 0, 10, 40)]))]
    assert "servers-on-loan" not in names
    assert "reclaims" in [drawing.name for drawing in drawings(lent(reclaims=()))]
