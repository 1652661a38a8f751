"""`protection` of a job enters admission and reaches the stores and the workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster.models import Cluster
from scheduling.models import Generation, Job
from scheduling.services.generations.failure_charges import FailureCharges
from scheduling.services.requests.jobs import job_submit, request_of
from tests.control_plane.conftest import SPEED
from tests.control_plane.requests.test_reserve import measure_function, with_stores
from tests.control_plane.simulated_agent import SimulatedAgent, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def asking(job: Job, **protection: int) -> Job:
    """Submit the same job again with protection."""
    request = replace(request_of(job), protection=protection)
    return job_submit(project=job.project, owner=job.owner, request=request)


def decided(job: Job, *agents: SimulatedAgent) -> Job:
    settle(*agents, rounds=1)
    job.refresh_from_db()
    assert job.verdict is not None
    return job


def test_copies_that_have_no_room_are_refused_or_run_with_fewer(cluster: Cluster, submit: Submit) -> None:
    agents = [SimulatedAgent.enrol(name, 4, SPEED) for name in ("node-1", "node-2")]
    measure_function(submit, *agents, copy_seconds=0.01, writing_seconds=0.05, store_seconds=0.05)
    with_stores(*agents)
    hard = decided(asking(submit(seconds=3600, iterations=100), replicas=3), *agents)
    assert (hard.state, hard.promised) == ("declined", False)
    assert hard.verdict is not None
    assert hard.verdict["reason_code"] == "protection"
    assert hard.verdict["reason"] == "3 copies in memory were asked for, and 2 servers have room for one."
    assert hard.verdict["offer"] is None
    late = decided(asking(submit(seconds=1, iterations=100_000), replicas=3), *agents)
    assert late.state == "declined"
    assert late.verdict is not None
    assert late.verdict["offer"] is None, "no later deadline makes room for the copies"
    assert not late.awaits_offer
    soft = decided(asking(submit("soft", seconds=3600, iterations=100), replicas=3), *agents)
    assert not soft.promised
    assert soft.state != "declined"
    assert soft.verdict is not None
    assert soft.verdict["reason_code"] == "protection"
    free = decided(asking(submit("best_effort", iterations=100), replicas=3), *agents)
    assert free.verdict is not None
    assert "2 servers have room for one: it runs with fewer." in free.verdict["reason"]
    pair = decided(asking(submit(seconds=3600, iterations=100), replicas=2), *agents)
    assert pair.promised


def test_a_class_is_chosen_within_what_was_asked(cluster: Cluster, submit: Submit) -> None:
    agents = [SimulatedAgent.enrol(f"node-{number}", 4, SPEED) for number in range(3)]
    measure_function(submit, *agents, copy_seconds=0.01, writing_seconds=0.05, store_seconds=0.05)
    with_stores(*agents)
    cluster.reserve_servers = 2
    charges = FailureCharges(cluster)
    measured = Job.objects.latest("submitted_at").curve
    usual = charges.asked_for(None, measured)
    assert usual.chosen.replicas == 2
    durable = charges.asked_for(None, measured, protection={"replicas": 1})
    assert not durable.chosen.in_memory
    three = charges.asked_for(None, measured, protection={"replicas": 3})
    assert three.chosen.replicas == 3
    assert three.slack_seconds < usual.slack_seconds < durable.slack_seconds, "both losses leave a copy"


def test_requested_protection_reaches_stores_and_workers(cluster: Cluster, submit: Submit) -> None:
    agents = [SimulatedAgent.enrol(f"node-{number}", 4, SPEED) for number in range(3)]
    measure_function(submit, *agents, copy_seconds=0.01, writing_seconds=0.05, store_seconds=0.05)
    with_stores(*agents)
    job = submit("best_effort", iterations=100_000)
    other = asking(job, replicas=3, frequency=7)
    settle(*agents)
    generation = Generation.objects.get(job=other, purpose="training")
    assert {len(holders) for holders in generation.protection["holders"]} == {3}
    point_iterations = {
        worker.entry["job"]: worker.entry["point_iterations"]
        for agent in agents
        for worker in agent.workers.values()
    }
    assert point_iterations[other.pk] == 7
    assert point_iterations.get(job.pk) is None
