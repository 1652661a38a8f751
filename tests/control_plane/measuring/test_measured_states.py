"""Memory for copies of a function's first job: the measurement reports the size of the state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.models import Cluster, Gpu, Server
from scheduling.models import Generation, Job, ScalingCurve
from tests.control_plane.conftest import SPEED
from tests.control_plane.requests.test_reserve import shard, with_stores
from tests.control_plane.simulated_agent import SimulatedAgent, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
STATE_BYTES = 1_000_000


@pytest.fixture
def curves_known() -> bool:
    return False


def enrol(name: str, state_bytes: int, memory_bytes: int = 0) -> SimulatedAgent:
    agent = SimulatedAgent.enrol(name, 4, SPEED)
    agent.state_bytes = state_bytes
    Server.objects.filter(pk=agent.agent.server_id).update(memory_bytes=memory_bytes)
    return agent


def first_generation(submit: Submit, *agents: SimulatedAgent) -> Generation:
    job = submit("best_effort", iterations=100_000)
    settle(*agents)
    return Generation.objects.get(job=job, purpose="training")


def test_memory_is_set_aside_for_the_copies_of_a_functions_first_job(
    cluster: Cluster, submit: Submit
) -> None:
    agents = [enrol(name, STATE_BYTES) for name in ("node-1", "node-2")]
    with_stores(*agents)
    generation = first_generation(submit, *agents)
    bytes_by_server = dict(generation.protection["memory_bytes"])
    assert generation.protection["replicas"] == 2
    assert set(bytes_by_server) == {agent.agent.server_id for agent in agents}
    assert min(bytes_by_server.values()) >= 2 * STATE_BYTES / 2, (
        "two slots for each shard that a server keeps"
    )


def test_state_without_room_in_memory_is_not_copied_with_the_reason(cluster: Cluster, submit: Submit) -> None:
    agents = [enrol(name, 10**12) for name in ("node-1", "node-2")]
    with_stores(*agents)
    generation = first_generation(submit, *agents)
    assert generation.protection["replicas"] < 2
    assert "of host memory" in generation.protection["reason"]


def test_state_size_is_capped_by_memory_of_the_measuring_servers(cluster: Cluster, submit: Submit) -> None:
    """The report comes from user code."""
    agent = enrol("node-1", 2**50, memory_bytes=64 << 30)
    Gpu.objects.filter(server=agent.agent.server_id).update(memory_bytes=1 << 30)
    first_generation(submit, agent)
    assert ScalingCurve.objects.get().state_bytes == (64 << 30) + (4 << 30)


def test_a_stored_state_that_is_larger_counts_from_then_on(cluster: Cluster, submit: Submit) -> None:
    agent = enrol("node-1", 500)
    generation = first_generation(submit, agent)
    assert ScalingCurve.objects.get().state_bytes == 500
    for worker in agent.workers.values():
        agent.event(worker, "shard_stored", **shard(worker, 5))
    agent.report()
    assert ScalingCurve.objects.get().state_bytes == 1000 * generation.world_size
