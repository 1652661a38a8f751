"""Executed as planned, with pauses charged, no promised job is ever late.

Random jobs with random curves, deadlines and pauses arrive on small crowded clusters. At every decision the
executor also checks that no GPU has two owners, that stored plans together fit the cluster, and that the
decision does not depend on the order of the jobs in the snapshot.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from scheduling.core.question.snapshot import Fill
from tests.core.executing import Cluster
from tests.core.workloads import random_workload

seeds = st.integers(min_value=0, max_value=2**32 - 1)
moderate = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def executed(seed: int, **choices: object) -> Cluster:
    workload = random_workload(seed, **choices)  # type: ignore[arg-type]
    cluster = Cluster(workload.servers, workload.settings)
    cluster.run(workload.jobs)
    return cluster


def assert_promises_kept(cluster: Cluster) -> None:
    assert cluster.late() == {}
    assert cluster.at_risk == set()
    admitted = {verdict.job_id for d in cluster.decisions for verdict in d.verdicts if verdict.admitted}
    assert set(cluster.completed_at) == admitted, "everybody who was let in is done in the end"


@moderate
@given(seed=seeds, fill=st.sampled_from(Fill))
def test_no_promised_job_is_late_without_pauses(seed: int, fill: Fill):
    assert_promises_kept(executed(seed, pauses=False, fill=fill))


@moderate
@given(seed=seeds, fill=st.sampled_from(Fill))
def test_no_promised_job_is_late_with_every_pause_charged(seed: int, fill: Fill):
    assert_promises_kept(executed(seed, pauses=True, fill=fill))


@moderate
@given(seed=seeds)
def test_no_promised_job_is_late_on_a_crowded_cluster(seed: int):
    assert_promises_kept(executed(seed, most_jobs=16, best_effort=0.1, tightness=(0.9, 1.6)))


@moderate
@given(seed=seeds)
def test_no_promised_job_is_late_when_others_stop_early(seed: int):
    workload = random_workload(seed, most_jobs=14, best_effort=0.15, tightness=(0.9, 1.8))
    slot = workload.settings.slot_seconds
    stops = {
        job.id: job.submitted_at + slot * (1 + number % 4)
        for number, job in enumerate(workload.jobs)
        if (seed + number) % 3 == 0
    }
    cluster = Cluster(workload.servers, workload.settings)
    cluster.run(workload.jobs, early_stops=stops)
    assert_promises_kept(cluster)


@moderate
@given(seed=seeds)
def test_losing_a_server_within_the_reserve_makes_no_job_late(seed: int):
    workload = random_workload(seed, most_jobs=12)
    assume(len(workload.servers) > 1)
    slot = workload.settings.slot_seconds
    pause = max(float(job.curve.pause_seconds.max(initial=0.0)) for job in workload.jobs)
    careful = replace(workload.settings, reserve_servers=1, reserve_slack_seconds=2 * slot + 2 * pause)
    jobs = [replace(job, deadline_at=job.deadline_at + 4 * slot) for job in workload.jobs]
    cluster = Cluster(workload.servers, careful)
    at = slot * (1 + seed % 8)
    cluster.run(jobs, until=at)
    cluster.lose_server(seed % len(workload.servers))
    cluster.run([job for job in jobs if job.submitted_at >= at])
    assert cluster.late() == {}
    assert cluster.at_risk == set()


def test_without_stored_plans_promises_do_break():
    """Check that the test above can fail: without stored plans the same workloads make promised jobs late."""
    broken = [
        seed
        for seed in (6, 52, 72, 96)
        if executed(seed, pauses=False, stored_plans=False, most_jobs=16, best_effort=0.0).late()
    ]
    assert broken, "switching stored plans off must cost at least one promise"
    for seed in (6, 52, 72, 96):
        assert_promises_kept(executed(seed, pauses=False, most_jobs=16, best_effort=0.0))


@pytest.mark.slow
@pytest.mark.parametrize("fill", list(Fill))
@pytest.mark.parametrize("pauses", [False, True])
def test_no_promised_job_is_late_in_five_thousand_cases(fill: Fill, pauses: bool):
    for seed in range(1250):
        assert_promises_kept(executed(seed, pauses=pauses, fill=fill))
