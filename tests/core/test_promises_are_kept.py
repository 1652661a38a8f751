"""What the platform stands for: executed as planned, pauses charged, no promised job is ever late.

Random jobs with random curves, deadlines and pauses arrive on small crowded clusters. The executor also
checks at every decision that no GPU has two owners, that stored plans together never exceed the
cluster, and that the same snapshot gives the same decision in whatever order its jobs are listed.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.core.snapshot import Fill
from tests.core.executing import Cluster
from tests.core.workloads import random_workload

seeds = st.integers(min_value=0, max_value=2**32 - 1)
moderate = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
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
def test_no_promised_job_is_late_on_a_crowded_cluster_of_tight_deadlines(seed: int):
    assert_promises_kept(executed(seed, most_jobs=16, best_effort=0.1, tightness=(0.9, 1.6)))
