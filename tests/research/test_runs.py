"""Digests of results, and runs that are resumed, interrupted, failing or parallel."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from research import sources
from research.elasticflow import specs
from research.elasticflow.specs import (
    ElasticFlowSpec,
    held_until_instants,
    slo_jobs_possible_alone,
    slo_jobs_possible_as_requested,
    workload_of,
)
from research.executing import make_results
from research.papers import PAPERS
from simulation.workloads.public_traces import VARIABLE
from tests.research.elasticflow.small import JOBS, traces

SMALL = ElasticFlowSpec("edf", "testbed_195job", 2, 4, 60.0)


@pytest.fixture(autouse=True)
def small_traces(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(traces(tmp_path / "traces")))


def test_a_result_is_known_by_jobs_settings_and_program(monkeypatch):
    key = SMALL.key()
    assert key == replace(SMALL).key()
    others = [
        replace(SMALL, policy="edf_artifact"),
        replace(SMALL, servers=3),
        replace(SMALL, slot_seconds=240.0),
        replace(SMALL, seed=1),
        replace(SMALL, jobs=3),
        replace(SMALL, hold_arrivals=True),
    ]
    assert len({key, *(other.key() for other in others)}) == len(others) + 1
    monkeypatch.setattr(specs, "code_digest", lambda policy, results: "another program")
    assert SMALL.key() != key


def test_another_policy_may_change_without_making_results_old():
    modules = sources.imported_by("simulation.baselines.against_elasticflow.edf")
    assert {
        "simulation.baselines.against_elasticflow.size_kernels",
        "scheduling.policies.base",
        "scheduling.core.problem.problem",
    } <= modules
    assert not modules & {
        "simulation.baselines.against_elasticflow.tiresias",
        "simulation.baselines.against_elasticflow.gandiva",
        "scheduling.policies",
        "simulation.policies",
        "simulation.baselines",
    }
    assert "scheduling.core.elasticflow.minimum_satisfactory_share" in sources.imported_by(
        *sources.ENGINE, "scheduling.policies.elasticflow"
    )


def test_code_digest_covers_a_papers_own_results_module_only():
    """It covers the results module of its own paper. Papers about planners compute and store no results."""
    keep = [paper for paper in PAPERS if find_spec(f"research.{paper}.results")]
    assert {"elasticflow", "lyra", "gemini"} <= set(keep)
    for paper in keep:
        results = f"research.{paper}.results"
        modules = sources.imported_by(*sources.ENGINE, results)
        assert {"research.store", "simulation.reports.summary", results} <= modules
        assert not {f"research.{other}.results" for other in set(keep) - {paper}} & modules
        assert sources.code_digest("edf", results) != sources.code_digest("edf", "simulation.engine.run")


def test_some_jobs_can_be_cut_out_from_a_time_on():
    cut = workload_of(replace(SMALL, begin_at=3_733_274.0 + 250, jobs=2))
    assert cut.job_id == ("job-1", "job-2")


def test_held_arrivals_lie_at_least_a_slot_apart():
    held = held_until_instants(np.array([10.0, 20.0, 30.0, 70.0, 75.0, 500.0]), 60.0)
    assert held.tolist() == [10.0, 70.0, 70.0, 70.0, 130.0, 500.0]


def test_bounds_count_jobs_that_any_policy_could_meet():
    workload = workload_of(SMALL)
    # Two jobs have less time than their duration at the size asked for; elastic, one of them fits with more
    # GPUs.
    assert slo_jobs_possible_as_requested(workload) == sum(tightness >= 1 for *_, tightness in JOBS)
    assert slo_jobs_possible_alone(SMALL, workload) == 5
    assert slo_jobs_possible_alone(replace(SMALL, servers=4), workload) == 6


def test_results_made_before_are_used_again(tmp_path):
    specs = [SMALL, replace(SMALL, policy="tiresias"), SMALL]
    first = make_results(specs, tmp_path)
    again = make_results(specs, tmp_path)
    assert (first.reused, again.reused, len(again.by_spec)) == (0, 2, 2)
    assert again.by_spec == first.by_spec
    assert first.by_spec[SMALL].slo_jobs == len(JOBS)


def test_a_result_that_cannot_be_read_is_made_again(tmp_path):
    first = make_results([SMALL], tmp_path)
    (tmp_path / "runs" / f"{SMALL.key()}.json").write_text("{half of it")
    again = make_results([SMALL], tmp_path)
    assert (again.reused, again.by_spec[SMALL].met) == (0, first.by_spec[SMALL].met)


def test_interrupted_run_keeps_finished_results_and_resumes(tmp_path, monkeypatch):
    specs = [SMALL, replace(SMALL, policy="tiresias"), replace(SMALL, policy="themis")]

    def interrupted(done, count, name):
        if done == 1:
            raise KeyboardInterrupt

    first = make_results(specs, tmp_path, told=interrupted)
    assert first.interrupted
    assert len(first.by_spec) == 1
    assert len(first.failed) == 2
    second = make_results(specs, tmp_path)
    assert (second.reused, len(second.by_spec), second.failed) == (1, 3, {})


def test_ctrl_c_within_a_run_leaves_no_half_result(tmp_path):
    def interrupt(ended, jobs, at):
        raise KeyboardInterrupt

    results = make_results([SMALL], tmp_path, progress=interrupt)
    assert results.interrupted
    assert results.by_spec == {}
    assert not list(tmp_path.rglob("*.json"))


def test_a_run_that_fails_costs_no_other_and_is_named(tmp_path, monkeypatch):
    def failing(spec, progress=None):
        if spec.policy == "edf":
            raise ZeroDivisionError("made to fail")
        return run(spec, progress)

    run = ElasticFlowSpec.run
    monkeypatch.setattr(ElasticFlowSpec, "run", failing)
    other = replace(SMALL, policy="tiresias")
    results = make_results([SMALL, other], tmp_path)
    assert results.failed == {SMALL: "failed: ZeroDivisionError: made to fail"}
    assert list(results.by_spec) == [other]


def test_a_missing_trace_fails_its_runs_with_where_the_original_is(tmp_path):
    absent = replace(SMALL, trace="cluster03")
    results = make_results([absent, SMALL], tmp_path)
    assert "microsoft/elasticflow-traces" in results.failed[absent]
    assert list(results.by_spec) == [SMALL]


@pytest.mark.slow
def test_two_processes_give_the_results_of_one(tmp_path):
    specs = [replace(SMALL, policy=policy) for policy in ("edf", "tiresias", "themis")]
    here = make_results(specs, tmp_path / "one")
    there = make_results(specs, tmp_path / "two", processes=2)
    assert there.failed == {}
    for spec in specs:
        assert there.by_spec[spec].met == here.by_spec[spec].met
        assert there.by_spec[spec].series == here.by_spec[spec].series
