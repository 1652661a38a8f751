"""Deployments whose layers stream: orders to agents, reports of replicas, and feasible targets."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from cluster.models import Gpu
from deployments.choices import DeploymentState, ReplicaState, RolloutState
from deployments.models import Deployment
from deployments.selectors.desired import desired_replicas
from deployments.services.deployments import deployment_change
from deployments.services.rollouts import Served
from deployments.services.steering import steer_deployments
from projects.models import Membership
from tests.deployments.conftest import Agents, Deploy, ServingAgent, completed_job, settle

URL = "/api/v1/deployments/"
#: 8 layers of 100 bytes, of which 4 stay; copies take 2 s each, and computing a layer 1 s.
RING = {
    "layers": 8, "sections": 6, "section_bytes": 100, "other_bytes": 50,
    "calls": 2, "entered": 16, "loads": 8, "copy_seconds": 16.0, "compute_seconds": 16.0,
    "stall_seconds": 1.0,
}  # fmt: skip

pytestmark = pytest.mark.django_db


def memory_sent(agent: ServingAgent) -> dict[str, Any]:
    (entry,) = [worker.entry for worker in agent.workers.values()]
    memory: dict[str, Any] = entry["memory"]
    return memory


def decline(agent: ServingAgent, reason: str) -> None:
    """Let the newest replica decline before it serves."""
    worker = max(agent.workers.values(), key=lambda worker: worker.entry["generation"])
    worker.phase = "failed"
    agent.event(worker, "failed", rank=0, reason="declined", message=reason)
    agent.report()


def test_a_ring_is_requested_sent_to_the_agent_and_shown(agents: Agents, member: Membership) -> None:
    client = APIClient()
    client.force_authenticate(member.user)
    body = {"job": completed_job(member).pk, "device_memory_bytes": 700, "latency_target_seconds": 20}
    made = client.post(URL, body, format="json")
    assert (made.status_code, made.data["device_memory_bytes"]) == (201, 700)
    address = f"{URL}{made.data['id']}/"
    settle(*agents)
    assert memory_sent(agents[0])["device_bytes"] == 700
    assert client.get(address).data["replicas"][0]["ring"] is None
    (key,) = agents[0].serving()
    agents[0].answered(key, 2, 9.0, 17.0, 20.0, ring=RING)
    assert client.get(address).data["replicas"][0]["ring"] == {
        "resident": 4, "streamed": 4, "device_bytes": 650, "model_bytes": 850,
        "load_seconds": 2.0, "compute_seconds": 1.0, "predicted_seconds": 8.0,
        "call_seconds": 8.5, "stall_seconds": 0.5,
    }  # fmt: skip
    assert client.patch(address, {"latency_target_seconds": 9}, format="json").status_code == 200
    refused = client.patch(address, {"latency_target_seconds": 7}, format="json")
    assert refused.status_code == 400
    (reason,) = refused.data["errors"]["latency_target_seconds"]
    assert "4 of 8 layers stream" in reason
    assert "Computation alone takes 8000 ms" in reason
    spread = {**body, "name": "spread", "experts": "spread", "servers": {"wanted": 2}}
    assert "device_memory_bytes" in client.post(URL, spread, format="json").data["errors"]


def test_changing_the_memory_starts_another_generation(
    agents: Agents, deploy: Deploy, member: Membership
) -> None:
    made = deploy(device_memory_bytes=700)
    settle(*agents)
    deployment_change(deployment=made, actor=member.user, changes={"device_memory_bytes": None})
    settle(*agents)
    made.refresh_from_db()
    assert (made.generation, made.rollouts.get(state=RolloutState.CURRENT).number) == (2, 2)


def test_gpu_limits_what_weights_may_take(agents: Agents, deploy: Deploy) -> None:
    Gpu.objects.update(memory_bytes=1000, kind="small")
    made = deploy(device_memory_bytes=5000, latency_target_seconds=0.5)
    settle(*agents)
    assert memory_sent(agents[0]) == {"device_bytes": 950, "latency_target_seconds": 0.5}
    # A generation that has served need not meet its target again.
    (replica,) = desired_replicas(made.replicas.get().server_id)
    assert replica["memory"] == {"device_bytes": 950, "latency_target_seconds": None}
    Gpu.objects.update(kind="cpu")
    deploy()
    settle(*agents)
    memories = [worker.entry["memory"]["device_bytes"] for worker in agents[0].workers.values()]
    assert sorted(memories, key=str) == [5000, None], "a processor's memory is the host's"


def test_declined_generation_is_given_up_at_once(agents: Agents, deploy: Deploy, member: Membership) -> None:
    made = deploy()
    settle(*agents)
    served = Served.of_job(completed_job(member))
    deployment_change(deployment=made, actor=member.user, changes={}, served=served)
    started = _start_newest(made, agents)
    decline(started, "copies take 1 s")
    settle(*agents)
    assert made.rollouts.get(number=2).state == RolloutState.FAILED
    made.refresh_from_db()
    assert made.state == DeploymentState.READY
    assert "Generation 2 was given up" in made.reason
    assert made.replicas.filter(state=ReplicaState.SERVING).count() == 1
    assert made.events.filter(kind="rollout_failed", message__contains="copies take 1 s").count() == 1


def test_deployment_that_is_declined_says_why(agents: Agents, deploy: Deploy) -> None:
    made = deploy()
    decline(_start_newest(made, agents), "copies take 1 s")
    made.refresh_from_db()
    assert made.state == DeploymentState.FAILED
    assert "copies take 1 s" in made.reason


def test_a_report_of_an_impossible_ring_is_refused(agents: Agents, deploy: Deploy) -> None:
    made = deploy()
    settle(*agents)
    (key,) = agents[0].serving()
    for wrong in ({**RING, "sections": 8}, {**RING, "loads": 0}):
        answer = agents[0].answered(key, 2, 9.0, 17.0, 20.0, ring=wrong)
        assert [item["part"] for item in answer.refused] == ["serving"]
    assert made.replicas.get().ring == {}


def _start_newest(made: Deployment, agents: Agents) -> ServingAgent:
    """Let a replica of the newest generation start, but not serve yet; return its agent."""
    steer_deployments()
    replica = made.replicas.get(state=ReplicaState.STARTING)
    (agent,) = [agent for agent in agents if agent.agent.server_id == replica.server_id]
    agent.obey()
    return agent
