"""A waiting job gets GPUs of a server with its state in memory, where others are equally good."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.utils import timezone

from cluster.models import Agent, Cluster, Server
from scheduling.choices import AssignmentState, JobState
from scheduling.models import Assignment, Generation, Job
from scheduling.selectors.recovery.memory_points import waiting_bytes
from scheduling.services.snapshots.servers_of_pool import holders_first
from scheduling.services.snapshots.snapshots import pool_snapshot
from tests.control_plane.conftest import SPEED
from tests.control_plane.generations.test_failures import fall_silent
from tests.control_plane.generations.test_memory_points import holding
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


@pytest.fixture
def three(cluster: Cluster) -> list[SimulatedAgent]:
    return [SimulatedAgent.enrol(f"node-{number}", 4, SPEED) for number in (1, 2, 3)]


def used() -> list[str]:
    held = Assignment.objects.filter(state=AssignmentState.HELD)
    return sorted(set(held.values_list("gpu__server__name", flat=True)))


def keeps(server: str, generation: Generation, size: int = 1000) -> None:
    """Report that the server's store has a copy of every rank's shard."""
    copies = [holding(generation, rank, 7, bytes=size) for rank in range(generation.world_size)]
    Agent.objects.filter(server__name=server).update(memory_store={"holdings": copies})


def order(cluster: Cluster) -> list[str]:
    return [server.id for server in pool_snapshot(cluster, KIND, timezone.now()).snapshot.servers]


@pytest.mark.parametrize("holder", [pytest.param("node-2", marks=pytest.mark.slow), "node-3"])
def test_a_recovered_job_goes_to_the_server_that_has_its_copies(
    cluster: Cluster, three: list[SimulatedAgent], submit: Submit, holder: str
) -> None:
    job = submit("best_effort", iterations=100_000, batch=4)
    settle(*three)
    assert used() == ["node-1"]
    generation = Generation.objects.get(job=job, state="live")
    keeps(holder, generation)
    assert order(cluster) == ["node-1", "node-2", "node-3"], "what trains is not moved to its copies"
    fall_silent(three[0], cluster)
    settle(*three[1:])
    assert used() == [holder]
    assert Job.objects.get(pk=job.pk).state == JobState.RUNNING
    assert order(cluster) == ["node-1", "node-2", "node-3"]


def test_racks_stay_together_and_topology_order_breaks_ties() -> None:
    racks = {1: "b", 2: "a", 3: "b", 4: "a", 5: "c"}
    assert holders_first(racks, {}) == [2, 4, 1, 3, 5]
    assert holders_first(racks, {9: 100}) == [2, 4, 1, 3, 5]
    assert holders_first(racks, {3: 10}) == [3, 1, 2, 4, 5]
    assert holders_first(racks, {3: 10, 5: 20, 4: 5}) == [5, 3, 1, 4, 2]


def test_only_the_newest_state_of_a_job_that_waits_counts(
    cluster: Cluster, three: list[SimulatedAgent], submit: Submit
) -> None:
    job = submit("best_effort", iterations=100_000, batch=4)
    settle(*three)
    generation = Generation.objects.get(job=job, state="live")
    keeps("node-3", generation, size=300)
    assert waiting_bytes(cluster) == {}
    fall_silent(three[0], cluster)
    assert Job.objects.get(pk=job.pk).state == JobState.SUSPENDED
    size = 300 * generation.world_size
    servers = dict(Server.objects.values_list("name", "pk"))
    assert waiting_bytes(cluster) == {servers["node-3"]: size}
    earlier = [{**holding(generation, 0, 3, bytes=10**6), "generation": generation.number - 1}]
    Agent.objects.filter(server__name="node-2").update(memory_store={"holdings": earlier})
    assert waiting_bytes(cluster) == {servers["node-3"]: size}
    Job.objects.filter(pk=job.pk).update(paused_by_owner=True)
    assert waiting_bytes(cluster) == {}
