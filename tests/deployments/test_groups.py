"""Deployments whose servers spread experts start, fail, are replaced and end as one group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Agent, Cluster
from deployments.api.expert_metrics import expert_metrics
from deployments.choices import DeploymentState, ExpertHosting, ReplicaState, RolloutState
from deployments.models import Deployment
from deployments.selectors.experts import deployment_experts
from deployments.services.deployments import deployment_change, deployment_delete
from deployments.services.replicas import PLACE_IS_FREED
from deployments.services.rollouts import Served
from deployments.services.steering import steer_deployments
from projects.errors import InvalidRequest
from projects.models import Membership
from scheduling.services.agents.leases import fence_server
from tests.control_plane.simulated_time import let_pass
from tests.deployments.conftest import Agents, Deploy, completed_job, settle, states
from tests.factories import ArtifactFactory

pytestmark = pytest.mark.django_db
GROUP: dict[str, Any] = {"experts": ExpertHosting.SPREAD, "minimum_servers": 2, "maximum_servers": 2}


def present(deployment: Deployment) -> list[tuple[str, int, str]]:
    rows = deployment.replicas.exclude(state=ReplicaState.GONE).order_by("created_at", "rank")
    return list(rows.values_list("group", "rank", "server__name"))


def entries(agents: Agents) -> list[dict[str, Any]]:
    return [dict(agent.workers[key].entry) for agent in agents for key in agent.workers]


def test_servers_of_a_group_meet_at_rank_0(agents: Agents, deploy: Deploy, member: Membership) -> None:
    job = completed_job(member)
    ArtifactFactory.create(job=job, name="expert_paths.pt")
    made = deploy(job, **GROUP)
    settle(*agents)
    (group, first, server), (other, second, _) = present(made)
    assert (group, first, second) == (other, 0, 1)
    started = entries(agents)
    rank_0 = made.replicas.get(rank=0)
    for entry in started:
        assert entry["world_size"] == 2
        assert (entry["master_address"], entry["master_port"]) == (rank_0.server.address, rank_0.group_port)
        assert [file["name"] for file in entry["files"]] == ["weights.pt", "expert_paths.pt"]
    assert rank_0.group_port != rank_0.port
    assert server == rank_0.server.name
    made.refresh_from_db()
    assert (made.state, made.reason) == (DeploymentState.READY, "")
    deployment_delete(deployment=made, actor=member.user)
    settle(*agents)
    assert set(made.replicas.values_list("state", flat=True)) == {ReplicaState.GONE}


def test_a_lost_worker_ends_its_group_which_starts_again(agents: Agents, deploy: Deploy) -> None:
    made = deploy(**GROUP)
    settle(*agents)
    before = present(made)
    agent = next(agent for agent in agents if agent.serving())
    (worker,) = agent.workers.values()
    worker.phase = "exited"
    agent.report()
    assert states(made) == ["stopping", "stopping"]
    assert len(set(made.replicas.values_list("reason", flat=True))) == 2, "each says why it ended"
    steer_deployments()
    made.refresh_from_db()
    assert made.reason == f"No server answers. {PLACE_IS_FREED}"
    settle(*agents)
    assert present(made) == []
    assert made.rollouts.get().failures == 1, "the group failed once, not once for each server"
    let_pass(2.0)
    settle(*agents)
    after = present(made)
    assert [rank for _, rank, _ in after] == [0, 1]
    assert after[0][0] != before[0][0]
    made.refresh_from_db()
    assert made.state == DeploymentState.READY


def test_a_silent_server_ends_the_group_of_all(agents: Agents, deploy: Deploy) -> None:
    made = deploy(**GROUP)
    settle(*agents)
    lost = next(agent for agent in agents if agent.agent.server_id == made.replicas.get(rank=1).server_id)
    Agent.objects.filter(pk=lost.agent.pk).update(last_report_at=timezone.now() - timedelta(hours=1))
    fence_server(Agent.objects.get(pk=lost.agent.pk), Cluster.objects.get())
    assert states(made) == ["stopping"]
    (old,) = {replica.group for replica in made.replicas.all()}
    settle(*(agent for agent in agents if agent is not lost))
    assert [rank for _, rank, _ in present(made)] == [0, 1]
    assert old not in {group for group, _, _ in present(made)}


def test_a_new_generation_replaces_a_group_whole(agents: Agents, deploy: Deploy, member: Membership) -> None:
    made = deploy(**GROUP)
    settle(*agents)
    old = present(made)[0][0]
    served = Served.of_job(completed_job(member))
    deployment_change(deployment=made, actor=member.user, changes={}, served=served)
    for _ in range(16):
        steer_deployments()
        serving = made.replicas.filter(state=ReplicaState.SERVING)
        groups = list(serving.values_list("group", flat=True))
        assert max(groups.count(group) for group in {*groups}) == 2, "one group is always whole"
        for agent in agents:
            agent.obey()
            agent.report()
    assert {group for group, _, _ in present(made)} != {old}
    assert len(present(made)) == 2
    assert list(made.rollouts.values_list("state", flat=True)) == [RolloutState.RETIRED, RolloutState.CURRENT]


def test_changing_the_number_of_servers_starts_another_group(
    agents: Agents, deploy: Deploy, member: Membership
) -> None:
    made = deploy(**GROUP)
    settle(*agents)
    three = {"minimum_servers": 3, "maximum_servers": 3, "servers": 3}
    deployment_change(deployment=made, actor=member.user, changes=three)
    settle(*agents)
    assert [rank for _, rank, _ in present(made)] == [0, 1, 2]
    assert [rollout.group_servers for rollout in made.rollouts.all()] == [2, 3]


def test_a_group_waits_until_there_is_room_for_all(agents: Agents, deploy: Deploy) -> None:
    made = deploy(experts=ExpertHosting.SPREAD, minimum_servers=4, maximum_servers=4)
    settle(*agents)
    assert present(made) == []
    made.refresh_from_db()
    assert made.reason == "There is no place for a group of 4 servers."


@pytest.mark.parametrize(("least", "most", "reason"), [(1, 2, "fixed number"), (1, 1, "at least 2")])
def test_a_group_has_a_fixed_number_of_servers(
    agents: Agents, deploy: Deploy, least: int, most: int, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        deploy(experts=ExpertHosting.SPREAD, minimum_servers=least, maximum_servers=most)


def report(hosts: list[list[int]]) -> dict[str, Any]:
    layer = {"name": "moe", "rows": [60, 20], "expected": [70.0, 10.0], "hosts": hosts, "passes": 8}
    counts = {"estimated": 4, "replaced": 1, "fullest_rows": 44, "fullest_rows_evenly": 60}
    return {"layers": [layer | counts], "swaps": 3, "swap_seconds": 0.5, "waited_seconds": 0.1}


def test_rank_0_reports_the_experts_of_its_group(agents: Agents, deploy: Deploy) -> None:
    made = deploy(**GROUP)
    assert deployment_experts(made)["layers"] == []
    settle(*agents)
    first, second = (
        next(agent for agent in agents if replica.key in agent.serving())
        for replica in made.replicas.order_by("rank")
    )
    answer = first.answered(first.serving()[0], 2, 0.1, 0.2, 1.0, experts=report([[0, 1], [1]]))
    assert not answer.refused
    experts = deployment_experts(made)
    (layer,) = experts["layers"]
    assert experts["servers"] == [replica.server.name for replica in made.replicas.order_by("rank")]
    assert (layer["popularity"], layer["predicted"]) == ([0.75, 0.25], [0.875, 0.125])
    assert (layer["hosts"], layer["replaced_share"]) == ([[0, 1], [1]], 0.25)
    assert (layer["load"], layer["even_load"]) == (1.1, 1.5)
    metrics = {sample.name for metric in expert_metrics() for sample in metric.samples}
    assert "punctual_deployment_expert_passes_total" in metrics
    wrong = first.answered(first.serving()[0], 3, 0.1, 0.3, 2.0, experts=report([[0, 2], [1]]))
    assert "rank 2 of a group of 2 servers" in wrong.refused[0]["reason"]
    other = second.answered(second.serving()[0], 3, 0.1, 0.3, 2.0, rank=1, experts=report([[0], [1]]))
    assert "rank 0" in other.refused[0]["reason"]
