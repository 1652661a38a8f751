"""Every live policy runs the cluster with the same code as the simulator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import JobState, PromiseOutcome
from scheduling.models import Decision, Job
from scheduling.policies import DEFAULT_POLICY, POLICIES
from scheduling.services.agents.drain import PromisesWouldBreak, server_drain
from scheduling.services.snapshots.snapshots import cluster_policy, pool_kinds, pool_snapshot
from simulation.replay import differences, replay
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.control_plane.simulated_time import let_pass

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


@pytest.fixture
def node(cluster: Cluster) -> SimulatedAgent:
    return SimulatedAgent.enrol("node-1", 4, SPEED)


def with_policy(cluster: Cluster, name: str) -> None:
    cluster.policy = name
    cluster.save(update_fields=["policy"])


#: One with promises, and one with notes for the next decision that shares out workers.
KINDS = {"elasticflow", "lyra"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in KINDS else pytest.mark.slow) for name in sorted(POLICIES)],
)
def test_jobs_train_to_their_end_under_every_policy(
    cluster: Cluster, node: SimulatedAgent, submit: Submit, name: str
) -> None:
    with_policy(cluster, name)
    jobs = [submit(seconds=600), submit("best_effort"), submit("soft", seconds=900)]
    for _ in range(6):
        settle(node)
        for job in jobs:
            job.refresh_from_db()
            if job.state == JobState.RUNNING:
                node.complete(job.pk)
                node.report()
    for job in jobs:
        job.refresh_from_db()
        assert job.state == JobState.COMPLETED, (job.service_class, job.verdict)
    promised = jobs[0].promise_outcome
    assert promised == (PromiseOutcome.MET if POLICIES[name].promises else PromiseOutcome.NONE)
    for row in Decision.objects.filter(snapshot__isnull=False):
        assert (
            differences(row.summary, replay(bytes(row.snapshot or b""), policy=row.policy, kind=row.kind))
            == []
        )


def test_policy_memory_returns_at_the_next_decision(
    cluster: Cluster, node: SimulatedAgent, submit: Submit
) -> None:
    remembering = next(policy for policy in POLICIES.values() if policy.memory_columns)
    with_policy(cluster, remembering.name)
    job = submit("best_effort", iterations=100_000)
    settle(node)
    let_pass(1.0)
    job.refresh_from_db()
    noted = job.policy_memory
    assert noted["policy"] == remembering.name
    assert len(noted["values"]) == len(remembering.memory_columns)
    (kind,) = pool_kinds(cluster)
    read = {item.id: item for item in pool_snapshot(cluster, kind, timezone.now()).snapshot.jobs}
    assert read[job.pk].memory == tuple(noted["values"])
    assert read[job.pk].attained_gpu_seconds > 0.0

    with_policy(cluster, "elasticflow")
    cluster.refresh_from_db()
    read = {item.id: item for item in pool_snapshot(cluster, kind, timezone.now()).snapshot.jobs}
    assert read[job.pk].memory == (), "another policy's memory is ignored"


@pytest.mark.parametrize("name", ["no such policy", "fifo"])
def test_unknown_policy_falls_back_to_the_default(
    cluster: Cluster, node: SimulatedAgent, submit: Submit, name: str
) -> None:
    """Published baselines run only in simulations."""
    with_policy(cluster, name)
    assert cluster_policy(cluster).name == DEFAULT_POLICY
    job = submit(seconds=600)
    settle(node)
    job.refresh_from_db()
    assert job.state == JobState.RUNNING
    with pytest.raises(PromisesWouldBreak) as refused:
        server_drain(server=node.agent.server, actor=job.owner)
    assert [row["job"] for row in refused.value.extra["broken_promises"]] == [job.pk]
