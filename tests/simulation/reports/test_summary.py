"""Metrics of the summary on runs small enough to work out by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.question.snapshot import ServiceClass
from simulation.outcome import JobEnd
from simulation.reports.summary import summary
from tests.simulation.reports.outcomes import (
    Job,
    best_effort,
    cluster_rows,
    declined,
    finished,
    outcome,
    random_outcome,
)


def test_declined_and_late_jobs_count_as_misses_of_the_deadline_ratio():
    report = summary(
        outcome(
            [
                finished("in time", 0, 0, 50, deadline=60),
                finished("at the last moment", 0, 0, 60, deadline=60),
                finished("late", 0, 0, 61, deadline=60),
                declined("refused", 0, deadline=5),
                best_effort("whenever", 0, 10, 90),
            ]
        )
    )
    assert report["jobs"] == 5
    assert (report["slo_jobs"], report["best_effort_jobs"]) == (4, 1)
    assert (report["admitted"], report["declined"]) == (3, 1)
    assert report["deadlines_met"] == 2
    assert report["deadline_satisfactory_ratio"] == 0.5
    assert report["admitted_late"] == 1


def test_only_slo_jobs_count_as_declined_and_as_deadlines_met():
    report = summary(
        outcome(
            [
                finished("soft in "
                         "time", 0, 0, 50, deadline=60, service_class=ServiceClass.SOFT, promised=False),
                declined("soft refused", 0, deadline=5, service_class=ServiceClass.SOFT),
            ]
        )
    )  # fmt: skip
    assert report["declined"] == 0
    assert report["deadlines_met"] == 0
    assert report["deadline_satisfactory_ratio"] is None
    assert report["fates"]["soft"] == {"met": 1, "missed": 0, "declined": 1, "void": 0, "open": 0}


def test_a_soft_job_that_was_promised_and_late_breaks_a_promise():
    late = finished("soft", 0, 0, 70, deadline=60, service_class=ServiceClass.SOFT)
    assert summary(outcome([late]))["admitted_late"] == 1


def test_a_late_job_without_a_promise_breaks_none():
    late = finished("admitted without control", 0, 0, 70, deadline=60, promised=False)
    report = summary(outcome([late]))
    assert report["admitted_late"] == 0
    assert report["fates"]["slo"]["missed"] == 1


def test_a_void_promise_is_neither_late_nor_met():
    report = summary(
        outcome(
            [
                finished("slower than profiled", 0, 0, 70, deadline=60, void="function_slower_than_profile"),
                finished("lost servers, still in time", 0, 0, 50, deadline=60,
                void="failures_beyond_reserve"),
                Job("withdrawn", end=JobEnd.CANCELLED, deadline=60, decided=0, void="cancelled"),
                Job("also withdrawn", end=JobEnd.CANCELLED, deadline=60, decided=0, void="cancelled"),
            ]
        )
    )  # fmt: skip
    assert report["admitted_late"] == 0
    assert report["deadlines_met"] == 0
    assert report["voided"] == {
        "cancelled": 2, "failures_beyond_reserve": 1, "function_slower_than_profile": 1,
    }  # fmt: skip


def test_unfinished_job_is_open_before_its_deadline_and_late_after():
    waiting = Job("unfinished", end=JobEnd.UNFINISHED, decided=0, deadline=100)
    stopped_before = summary(outcome([waiting], end_at=90, interrupted=True))
    stopped_after = summary(outcome([waiting], end_at=110, interrupted=True))
    assert stopped_before["fates"]["slo"]["open"] == 1
    assert stopped_before["admitted_late"] == 0
    assert stopped_after["admitted_late"] == 1
    assert stopped_before["interrupted"] is True


def test_promised_job_unfinished_in_a_whole_run_is_late():
    stuck = Job("stuck", end=JobEnd.UNFINISHED, decided=0, deadline=1000)
    assert summary(outcome([stuck], end_at=90))["admitted_late"] == 1


def test_undecided_job_is_neither_admitted_nor_declined():
    report = summary(outcome([Job("too new", end=JobEnd.UNFINISHED, promised=False, deadline=500)]))
    assert (report["admitted"], report["declined"]) == (0, 0)


def test_job_times_cover_completed_jobs_of_every_class():
    report = summary(
        outcome(
            [
                finished("a", 10, 20, 50, deadline=60),
                best_effort("b", 20, 50, 100),
                declined("c", 0, deadline=5),
                Job("d", end=JobEnd.UNFINISHED, decided=0, started=5, deadline=1000),
            ]
        )
    )
    assert report["mean_jct_seconds"] == (40 + 80) / 2
    assert report["mean_queuing_seconds"] == (10 + 30) / 2
    assert report["best_effort_mean_jct_seconds"] == 80
    assert report["makespan_seconds"] == 100
    assert report["jct_seconds_p50"] == 60
    assert report["queuing_seconds_p75"] == 25
    assert report["queuing_seconds_p99"] == pytest.approx(29.8)


def test_utilisation_and_efficiency_are_averaged_over_time():
    # The second row is V23: of four GPUs one job holds two (speed-up 1.5), one holds one, one is idle.
    cluster = cluster_rows(
        (0.0, 4, 4, 0, 1, 0, 0.5, 0.002),
        (10.0, 4, 2, 1, 2, 0, 0.625, 0.004),
        (40.0, 4, 0, 0, 0, 0, 0.0, 0.006),
    )
    report = summary(outcome(cluster=cluster, end_at=100.0))
    assert report["mean_cluster_efficiency"] == pytest.approx((10 * 0.5 + 30 * 0.625) / 100)
    assert report["mean_gpu_utilisation"] == pytest.approx((10 * 4 + 30 * 3) / 400)
    assert report["decision_ms_p50"] == pytest.approx(4.0)


def test_summary_counts_from_the_start_of_the_trace():
    cluster = cluster_rows((5e6, 4, 4, 0, 1, 0, 0.5, 0.002), (5e6 + 360_000, 4, 0, 0, 0, 0, 0.1, 0.002))
    job = finished("a", 5e6, 5e6, 5e6 + 10, deadline=6e6)
    report = summary(outcome([job], cluster, end_at=5e6 + 720_000))
    assert report["simulated_seconds"] == 720_000
    assert report["makespan_seconds"] == 10
    assert report["mean_cluster_efficiency"] == pytest.approx(0.3)
    assert report["mean_cluster_efficiency_first_100_hours"] == pytest.approx(0.5)


def test_utilisation_counts_only_the_gpus_present():
    cluster = cluster_rows((0.0, 8, 8, 0, 1, 0, 1.0, 0.1), (50.0, 4, 0, 0, 0, 0, 0.0, 0.1))
    assert summary(outcome(cluster=cluster))["mean_gpu_utilisation"] == pytest.approx(400 / 600)


def test_preemption_ratio_counts_all_submitted_jobs():
    jobs = [
        best_effort("a", 0, 5, 9),
        best_effort("b", 0, 5, 9),
        best_effort("c", 0, 5, 9),
        best_effort("d", 0, 5, 9),
    ]
    report = summary(outcome(jobs, counts={"preemptions": 1}))
    assert report["preemption_ratio"] == 0.25


def test_an_empty_run_has_counts_of_zero_and_no_averages():
    report = summary(outcome(counts={}, end_at=0.0))
    assert (
        report["jobs"]
        == report["deadlines_met"]
        == report["decisions"]
        == report["shortfall_servers_max"]
        == 0
    )
    for name in (
        "deadline_satisfactory_ratio",
        "mean_jct_seconds",
        "mean_gpu_utilisation",
        "decision_ms_p99",
    ):
        assert report[name] is None


def test_the_summary_has_every_field_that_other_programs_read():
    promised = [
        "policy",
        "trace",
        "seed",
        "jobs",
        "slo_jobs",
        "best_effort_jobs",
        "admitted",
        "declined",
        "deadlines_met",
        "deadline_satisfactory_ratio",
        "admitted_late",
        "mean_jct_seconds",
        "mean_queuing_seconds",
        "best_effort_mean_jct_seconds",
        "makespan_seconds",
        "mean_gpu_utilisation",
        "mean_cluster_efficiency",
        "rescales",
        "migrations",
        "preemptions",
        "simulated_seconds",
        "wall_seconds",
        "peak_memory_bytes",
        "setup_seconds",
        "decisions",
        "decision_ms_p50",
        "decision_ms_p99",
        "voided",
        "preemption_ratio",
        "shortfall_servers_max",
        "interrupted",
        "notes",
        "settings",
    ]
    promised += [f"{name}_seconds_p{share}" for name in ("jct", "queuing") for share in (50, 75, 95, 99)]
    assert set(promised) <= set(summary(outcome()))


def test_the_summary_is_strict_json_for_any_settings():
    report = summary(outcome(settings={"limit": math.inf, "margin": math.nan}))
    assert json.loads(json.dumps(report, allow_nan=False))["settings"]["limit"] is None


@given(jobs=st.integers(0, 60), seed=st.integers(0, 2**16))
def test_every_job_with_a_deadline_has_exactly_one_fate(jobs, seed):
    report = summary(random_outcome(jobs, 5, seed))
    of_slo, of_soft = report["fates"]["slo"], report["fates"]["soft"]
    assert sum(of_slo.values()) == report["slo_jobs"]
    assert sum(of_slo.values()) + sum(of_soft.values()) + report["best_effort_jobs"] == report["jobs"]
    assert of_slo["met"] == report["deadlines_met"]
    assert of_slo["declined"] == report["declined"]
    assert of_slo["void"] + of_soft["void"] == sum(report["voided"].values())
    assert report["admitted"] + report["declined"] <= report["slo_jobs"]
    assert report["admitted_late"] <= of_slo["missed"] + of_soft["missed"]


@given(jobs=st.integers(0, 40), instants=st.integers(1, 40), seed=st.integers(0, 2**16))
def test_averages_lie_within_the_range_of_their_values(jobs, instants, seed):
    run = random_outcome(jobs, instants, seed)
    report = summary(run)
    assert 0.0 <= report["mean_gpu_utilisation"] <= 1.0
    efficiency = run.cluster.cluster_efficiency
    # Rounding of a mean may leave the range by the last digit.
    assert efficiency.min() - 1e-12 <= report["mean_cluster_efficiency"] <= efficiency.max() + 1e-12
    if report["mean_jct_seconds"] is not None:
        assert report["mean_queuing_seconds"] <= report["mean_jct_seconds"] <= report["makespan_seconds"]
        shares = [report[f"jct_seconds_p{share}"] for share in (50, 75, 95, 99)]
        assert shares == sorted(shares)
    json.dumps(report, allow_nan=False)
    assert np.isfinite(report["simulated_seconds"])
