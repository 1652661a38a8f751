"""Synthetic workloads: seeds are reproducible, streams independent, and shapes as described."""

from __future__ import annotations

from math import floor, inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.question.snapshot import ServiceClass
from simulation.workloads.catalogue import gpu_types_of, load_workload, reference_gpu_type
from simulation.workloads.errors import TraceError
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.synthetic import PROFILES
from tests.simulation.workloads.helpers import assert_same, table, throughput_of

profiles = st.sampled_from(sorted(PROFILES))
seeds = st.integers(0, 2**32)


@given(name=profiles, seed=seeds, share=st.floats(0, 1), loosest=st.floats(0.5, 3), jobs=st.integers(1, 60))
def test_every_job_could_be_submitted(name: str, seed: int, share: float, loosest: float, jobs: int) -> None:
    options = WorkloadOptions(jobs=jobs, best_effort_share=share, loosest=loosest)
    workload = load_workload(name, seed=seed, options=options)
    assert workload.jobs == jobs
    assert len(set(workload.job_id)) == jobs
    assert workload.submitted_at[0] == 0
    assert (np.diff(workload.submitted_at) >= 0).all()
    for row in range(jobs):
        seconds = float(workload.requested_seconds[row])
        assert workload.iterations[row] == max(
            1, floor(seconds * throughput_of(workload, row, reference_gpu_type(workload)))
        )
        if workload.service_class[row] is ServiceClass.BEST_EFFORT:
            assert workload.deadline_at[row] == inf
        else:
            slack = workload.deadline_at[row] - workload.submitted_at[row]
            assert floor(0.5 * seconds) <= slack <= loosest * seconds


# Not for profiles with a given load of the cluster, which are drawn as a whole.
@given(
    name=st.sampled_from(sorted(name for name, one in PROFILES.items() if one.shape().gpu_seconds is None)),
    seed=seeds,
    fewer=st.integers(1, 40),
    more=st.integers(0, 40),
)
def test_fewer_jobs_are_the_first_of_more(name: str, seed: int, fewer: int, more: int) -> None:
    few = load_workload(name, seed=seed, options=WorkloadOptions(jobs=fewer))
    many = load_workload(name, seed=seed, options=WorkloadOptions(jobs=fewer + more)).first(fewer)
    assert few.submitted_at.tolist() == many.submitted_at.tolist()
    assert few.deadline_at.tolist() == many.deadline_at.tolist()
    assert few.iterations.tolist() == many.iterations.tolist()


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_the_same_seed_gives_the_same_workload(name: str) -> None:
    options = WorkloadOptions(jobs=80)
    first, again, other = (load_workload(name, seed=seed, options=options) for seed in (3, 3, 4))
    assert_same(first, again)
    assert first.submitted_at.tolist() != other.submitted_at.tolist()
    assert first.iterations.tolist() != other.iterations.tolist()


def test_the_best_effort_share_changes_only_deadlines() -> None:
    none, half, most = (
        load_workload("elasticflow", seed=5, options=WorkloadOptions(jobs=300, best_effort_share=share))
        for share in (0.0, 0.5, 0.9)
    )
    assert none.iterations.tolist() == half.iterations.tolist() == most.iterations.tolist()
    assert none.submitted_at.tolist() == most.submitted_at.tolist()
    has_deadline = np.isfinite(half.deadline_at)
    assert half.deadline_at[has_deadline].tolist() == none.deadline_at[has_deadline].tolist()
    # Jobs that are best effort at a small share are so at a larger share.
    assert np.isfinite(half.deadline_at)[np.isfinite(most.deadline_at)].all()
    assert 0.4 < 1 - has_deadline.mean() < 0.6


def test_tightness_changes_only_deadlines() -> None:
    usual = load_workload("elasticflow", seed=1, options=WorkloadOptions(jobs=100))
    loose = load_workload("elasticflow:tightest=1.5,loosest=1.5", seed=1, options=WorkloadOptions(jobs=100))
    assert usual.iterations.tolist() == loose.iterations.tolist()
    slack = loose.deadline_at - loose.submitted_at
    assert slack.tolist() == np.floor(1.5 * loose.requested_seconds).tolist()


def test_the_elasticflow_profile_has_the_papers_parameters() -> None:
    jobs = load_workload("elasticflow", seed=0)
    assert jobs.jobs == 1000
    assert np.diff(jobs.submitted_at).mean() == pytest.approx(1500, rel=0.15)
    assert (jobs.requested_seconds < 60 * 10**2.5).mean() == pytest.approx(0.8, abs=0.05)
    assert jobs.requested_seconds.min() >= 600
    assert jobs.requested_seconds.max() <= 600_000
    assert (jobs.requested_gpus == 1).mean() == pytest.approx(0.83, abs=0.04)
    assert (jobs.requested_gpus == 8).mean() == pytest.approx(0.10, abs=0.03)
    models = np.bincount(jobs.profile_of, minlength=14)
    assert models.size == 14
    assert models.min() > 30


def test_itp_like_durations_are_heavy_tailed() -> None:
    seconds = load_workload("itp", seed=0).requested_seconds
    assert 1.2 * 3600 < np.median(seconds) < 4.9 * 3600
    assert 1.1 < seconds.mean() / np.median(seconds) < 5.7
    assert seconds.min() >= 600


def test_philly_like_jobs_are_short_and_small() -> None:
    jobs = load_workload("philly", seed=0)
    assert 12 * 60 < np.median(jobs.requested_seconds) < 24 * 60
    assert jobs.requested_seconds.mean() > 4 * np.median(jobs.requested_seconds)
    assert (jobs.requested_gpus == 1).mean() > 0.9


def test_half_of_large_itp_like_jobs_take_eight_gpus() -> None:
    assert 0.45 < (load_workload("itp_large", seed=0).requested_gpus == 8).mean() < 0.60


def test_bursty_jobs_follow_the_day_and_come_in_bursts() -> None:
    jobs = load_workload("bursty", seed=0, options=WorkloadOptions(jobs=6000))
    gaps = np.diff(jobs.submitted_at)
    assert gaps.mean() == pytest.approx(600, rel=0.1)
    assert (gaps <= 110).mean() > 0.5
    quarter_of_day = (jobs.submitted_at % 86_400 // 21_600).astype(int)
    counts = np.bincount(quarter_of_day, minlength=4)
    assert counts[:2].sum() > 1.5 * counts[2:].sum()


def test_measured_throughputs_replace_synthetic_throughputs(tmp_path: Path) -> None:
    synthetic = load_workload("elasticflow", options=WorkloadOptions(jobs=50))
    assert any("synthetic" in note for note in synthetic.notes)
    measured = load_workload("elasticflow", throughputs=table(tmp_path), options=WorkloadOptions(jobs=50))
    assert not any("synthetic" in note for note in measured.notes)
    assert {profile.model for profile in measured.profiles} == {"bert", "resnet50"}
    assert measured.requested_seconds.tolist() == synthetic.requested_seconds.tolist()


def test_profiles_hold_every_gpu_type_with_the_reference_first() -> None:
    jobs = load_workload("itp", gpu_type="t4", options=WorkloadOptions(jobs=30))
    assert reference_gpu_type(jobs) == "T4"
    assert gpu_types_of(jobs) == ("T4", "A100", "V100")
    assert all(set(profile.by_kind) == {"T4", "A100", "V100"} for profile in jobs.profiles)
    assert jobs.iterations[0] == floor(jobs.requested_seconds[0] * throughput_of(jobs, 0, "T4"))


def test_limit_sets_the_number_of_synthetic_jobs() -> None:
    assert load_workload("elasticflow", limit_jobs=1200).jobs == 1200
    assert load_workload("elasticflow", limit_jobs=7).jobs == 7


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("elasticflow:sped=3", "unknown option 'sped'; known are format"),
        ("elasticflow:jobs=many", "option jobs needs a number, not 'many'"),
        ("elasticflow:jobs=-3", "positive"),
    ],
)
def test_options_behind_the_name_are_checked(name: str, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        load_workload(name)
