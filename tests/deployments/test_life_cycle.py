"""A deployment on simulated agents: started, replaced, rolled back, drained, failed, fenced, stopped."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Agent, Cluster, Server
from deployments.choices import DeploymentState, ReplicaState, RolloutState
from deployments.core.replacing import next_steps
from deployments.models import Deployment, Replica
from deployments.services.deployments import (
    deployment_change,
    deployment_delete,
    deployment_drain,
    deployment_rollback,
)
from deployments.services.rollouts import Served
from deployments.services.steering import steer_deployments
from deployments.services.tokens import deployment_token_issue, deployment_token_revoke
from projects.errors import Conflict
from projects.models import Membership, token_digest
from scheduling.services.agents.leases import fence_server
from tests.control_plane.simulated_time import let_pass
from tests.deployments.conftest import Agents, Deploy, completed_job, settle, states

pytestmark = pytest.mark.django_db


def replace(deployment: Deployment, member: Membership) -> str:
    """Replace the weights by another job's; return the job's id."""
    job = completed_job(member)
    deployment_change(deployment=deployment, actor=member.user, changes={}, served=Served.of_job(job))
    return job.pk


def serving_job(deployment: Deployment) -> set[str | None]:
    serving = deployment.replicas.filter(state=ReplicaState.SERVING)
    return {replica.rollout.job_id for replica in serving}


def test_replicas_of_a_deployment_never_share_a_server(
    agents: Agents, deploy: Deploy, member: Membership
) -> None:
    made = deploy(minimum_servers=2, maximum_servers=2)
    settle(*agents)
    assert [len(agent.serving()) for agent in agents] == [1, 1, 0]
    entry = agents[0].workers[agents[0].serving()[0], 1, 0].entry
    assert [file["name"] for file in entry["files"]] == ["weights.pt"]
    assert len(entry["start"]["tokens"]) == 1
    deployment_delete(deployment=made, actor=member.user)
    settle(*agents)
    made.refresh_from_db()
    assert made.state == DeploymentState.STOPPED
    assert [agent.workers for agent in agents] == [{}, {}, {}]
    assert set(made.replicas.values_list("state", flat=True)) == {ReplicaState.GONE}


def test_a_new_generation_takes_over_without_a_gap(
    agents: Agents, deploy: Deploy, member: Membership
) -> None:
    made = deploy(minimum_servers=3, maximum_servers=3)
    settle(*agents)
    job = replace(made, member)
    lowest = 3
    for _ in range(16):
        steer_deployments()
        lowest = min(lowest, made.replicas.filter(state=ReplicaState.SERVING).count())
        for agent in agents:
            agent.obey()
            agent.report()
    assert lowest == 3, "each new replica served before an old one drained"
    assert serving_job(made) == {job}
    assert list(made.rollouts.values_list("state", flat=True)) == [RolloutState.RETIRED, RolloutState.CURRENT]
    made.refresh_from_db()
    assert (made.state, made.reason) == (DeploymentState.READY, "")


def test_a_rollback_serves_the_earlier_job_again(agents: Agents, deploy: Deploy, member: Membership) -> None:
    made = deploy()
    settle(*agents)
    (first,) = serving_job(made)
    with pytest.raises(Conflict, match="no earlier generation"):
        deployment_rollback(deployment=made, actor=member.user)
    replace(made, member)
    settle(*agents)
    deployment_rollback(deployment=made, actor=member.user)
    settle(*agents)
    assert serving_job(made) == {first}
    assert made.rollouts.latest("number").number == 3


def test_a_rollback_withdraws_a_generation_before_it_serves(
    agents: Agents, deploy: Deploy, member: Membership
) -> None:
    made = deploy()
    settle(*agents)
    (key,) = agents[0].serving()
    replace(made, member)
    steer_deployments()
    deployment_rollback(deployment=made, actor=member.user)
    settle(*agents)
    assert [replica.key for replica in made.replicas.filter(state=ReplicaState.SERVING)] == [key]
    assert states(made) == ["serving"]
    assert list(made.rollouts.values_list("state", flat=True)) == [RolloutState.CURRENT, RolloutState.RETIRED]


def test_a_failing_generation_is_given_up(agents: Agents, deploy: Deploy, member: Membership) -> None:
    made = deploy()
    settle(*agents)
    (key,) = agents[0].serving()
    replace(made, member)
    for agent in agents:
        agent.broken = {2: "the weights lack 1 tensor"}
    for _ in range(3):
        settle(*agents)
        let_pass(61.0)
    settle(*agents)
    made.refresh_from_db()
    assert made.state == DeploymentState.READY
    assert made.reason == "Generation 2 was given up; generation 1 serves on."
    failed = made.rollouts.get(number=2)
    assert (failed.state, failed.failures) == (RolloutState.FAILED, 3)
    assert [replica.key for replica in made.replicas.filter(state=ReplicaState.SERVING)] == [key]


def test_failed_replicas_restart_with_growing_waits(agents: Agents, deploy: Deploy) -> None:
    made = deploy()
    settle(*agents)
    for agent in agents:
        agent.broken = {1: "out of memory"}
    waits = []
    for _ in range(4):
        settle(*agents)
        rollout = made.rollouts.get()
        waits.append(round((rollout.not_before - timezone.now()).total_seconds()))
        let_pass(waits[-1] + 0.1)
    assert waits == [1, 4, 16, 60]
    made.refresh_from_db()
    assert made.state == DeploymentState.DEGRADED
    for agent in agents:
        agent.broken = {}
    settle(*agents)
    made.refresh_from_db()
    assert (made.state, made.reason) == (DeploymentState.READY, "")


def test_a_deployment_that_never_served_fails_with_the_reason(
    agents: Agents, deploy: Deploy, member: Membership
) -> None:
    made = deploy()
    for agent in agents:
        agent.broken = {1: "no module named nowhere"}
    for _ in range(4):
        settle(*agents)
        let_pass(61.0)
    made.refresh_from_db()
    assert made.state == DeploymentState.FAILED
    assert "no module named nowhere" in made.reason
    assert states(made) == []
    replace(made, member)
    settle(*agents)
    made.refresh_from_db()
    assert (made.state, made.reason) == (DeploymentState.READY, "")


def test_a_lost_server_is_replaced(agents: Agents, deploy: Deploy) -> None:
    made = deploy()
    settle(*agents)
    lost = agents[0]
    Agent.objects.filter(pk=lost.agent.pk).update(last_report_at=timezone.now() - timedelta(hours=1))
    fence_server(Agent.objects.get(pk=lost.agent.pk), Cluster.objects.get())
    steer_deployments()
    made.refresh_from_db()
    assert (made.state, made.reason) == (DeploymentState.DEGRADED, "No server answers.")
    settle(*agents[1:])
    made.refresh_from_db()
    assert (made.state, made.reason) == (DeploymentState.READY, "")
    assert sum(len(agent.serving()) for agent in agents[1:]) == 1
    gone = made.replicas.get(server=lost.agent.server)
    assert (gone.state, gone.reason) == (ReplicaState.GONE, "its server fell silent")


def test_a_drained_server_is_left_after_another_serves(
    agents: Agents, deploy: Deploy, member: Membership
) -> None:
    made = deploy()
    settle(*agents)
    deployment_drain(deployment=made, actor=member.user, server_name="serving-1")
    settle(*agents)
    assert [len(agent.serving()) for agent in agents] == [0, 1, 0]
    assert agents[0].workers == {}


def test_a_server_that_an_operator_drains_is_left(agents: Agents, deploy: Deploy) -> None:
    deploy()
    settle(*agents)
    Server.objects.filter(name="serving-1").update(drain="draining")
    settle(*agents)
    assert [len(agent.serving()) for agent in agents] == [0, 1, 0]


def test_tokens_reach_agents_as_digests_until_revoked(
    agents: Agents, deploy: Deploy, member: Membership
) -> None:
    made = deploy()
    settle(*agents)
    row, token = deployment_token_issue(deployment=made, actor=member.user, name="shop")
    settle(*agents)
    (key,) = agents[0].serving()
    entry = agents[0].workers[key, 1, 0].entry
    assert token_digest(token) in entry["start"]["tokens"]
    assert token not in str(entry)
    deployment_token_revoke(token=row, actor=member.user)
    settle(*agents)
    assert token_digest(token) not in agents[0].workers[key, 1, 0].entry["start"]["tokens"]


def test_a_deployment_reports_replicas_without_a_place(agents: Agents, deploy: Deploy) -> None:
    made = deploy(minimum_servers=3, servers=4, maximum_servers=4)
    settle(*agents)
    made.refresh_from_db()
    assert states(made) == ["serving"] * 3
    assert (made.state, made.reason) == (DeploymentState.READY, "There is no place for 1 of 4 replicas.")


def test_a_replica_that_never_serves_is_ended(agents: Agents, deploy: Deploy) -> None:
    made = deploy()
    steer_deployments()
    Replica.objects.update(created_at=timezone.now() - timedelta(hours=1))
    steer_deployments()
    replica = made.replicas.get()
    assert replica.state == ReplicaState.STOPPING
    assert "did not serve within" in replica.reason


def test_an_error_in_steering_spares_other_deployments(
    agents: Agents, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = deploy(), deploy()
    calls: list[int] = []

    def fail_once(standings: Any, wanted: int, places: int) -> Any:
        calls.append(wanted)
        if len(calls) == 1:
            raise ZeroDivisionError
        return next_steps(standings, wanted, places)

    monkeypatch.setattr("deployments.services.steering.next_steps", fail_once)
    steer_deployments()
    older.refresh_from_db()
    assert older.reason.startswith("An error in the control plane")
    assert (states(older), states(newer)) == ([], ["starting"])
    settle(*agents)
    older.refresh_from_db()
    assert (older.state, older.reason) == (DeploymentState.READY, "")
