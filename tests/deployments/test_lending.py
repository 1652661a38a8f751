"""Deployments schedule their inference cluster: traffic decides when servers are lent and reclaimed."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from cluster.models import Agent, Cluster, Server
from deployments.choices import DeploymentState
from deployments.models import Deployment
from deployments.services.deployments import deployment_change, deployment_delete
from deployments.services.lending import schedule_inference_clusters
from deployments.services.sampling import measure_deployments
from deployments.services.steering import steer_deployments
from lending.choices import LoanState, ReclaimState, ScheduledBy
from lending.models import InferenceCluster, LoanOrder, ReclaimOrder
from lending.services.forecasts import forecast_usage
from lending.services.inference_clusters import credential_issue
from lending.services.orchestrator import orchestrate
from projects.models import Membership
from scheduling.services.agents.leases import fence_server
from tests.control_plane.simulated_time import let_pass
from tests.deployments.conftest import Agents, Deploy, settle, states

pytestmark = pytest.mark.django_db

#: The period of usage samples and of the control plane's steps: longer than in production, so that tests take
#: few steps.
PERIOD_SECONDS = 60.0
#: Calm periods before a server is removed: fewer than in production.
CALM_PERIODS = 2


@pytest.fixture(autouse=True)
def scheduled(inference: InferenceCluster) -> InferenceCluster:
    """Have the inference cluster scheduled by its deployments."""
    inference.scheduled_by = ScheduledBy.DEPLOYMENTS
    inference.period_seconds, inference.hysteresis_fraction = PERIOD_SECONDS, 0.0
    inference.save()
    return inference


class Traffic:
    """Requests that keep replicas busy; agents report them before each step of the control plane."""

    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.counts: dict[str, tuple[int, float, float]] = {}

    def step(self, busy: float, latency: float = 0.05) -> None:
        """Let one period pass in which this many servers are busy."""
        let_pass(PERIOD_SECONDS)
        serving = [(agent, key) for agent in self.agents for key in agent.serving()]
        for agent, key in serving:
            requests, seconds, uptime = self.counts.get(key, (0, 0.0, 0.0))
            share = min(1.0, busy / len(serving))
            self.counts[key] = (requests + 300, seconds + share * PERIOD_SECONDS, uptime + PERIOD_SECONDS)
            requests, seconds, uptime = self.counts[key]
            agent.answered(key, requests, latency, seconds, uptime)
        measure_deployments()
        schedule_inference_clusters()
        forecast_usage(InferenceCluster.objects.get().pk)
        schedule_inference_clusters()
        orchestrate()
        settle(*self.agents)

    def last(self, periods: int, busy: float, latency: float = 0.05) -> None:
        """Let the same traffic last."""
        for _ in range(periods):
            self.step(busy, latency)


@pytest.fixture
def traffic(agents: Agents) -> Traffic:
    return Traffic(agents)


def whereabouts() -> list[str]:
    return list(Server.objects.order_by("name").values_list("lending_state", flat=True))


def serving_on(agents: Agents) -> list[int]:
    return [len(agent.serving()) for agent in agents]


def bounds(deployment: Deployment, member: Membership, least: int, most: int) -> None:
    changes = {"minimum_servers": least, "maximum_servers": most}
    deployment_change(deployment=deployment, actor=member.user, changes=changes)


def test_traffic_lends_idle_servers_and_asks_them_back(
    inference: InferenceCluster,
    agents: Agents,
    deploy: Deploy,
    traffic: Traffic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("core.scaling", "services.sampling"):
        monkeypatch.setattr(f"deployments.{module}.CALM_PERIODS", CALM_PERIODS)
    made = deploy(maximum_servers=3, latency_target_seconds=0.2)
    settle(*agents)
    traffic.last(2, busy=0.3)
    assert whereabouts() == ["inference", "on_loan", "on_loan"]
    usage = inference.usage_samples.latest("period_ends_at")
    assert usage.usage == pytest.approx(0.3 / 0.7 / 3, rel=0.05), "0.3 busy servers at a share of 0.7"
    assert usage.source == "measured"
    traffic.last(3, busy=1.9)
    assert whereabouts() == ["inference"] * 3
    assert serving_on(agents) == [1, 1, 1]
    made.refresh_from_db()
    assert (made.state, made.reason) == (DeploymentState.READY, "")
    orders = list(ReclaimOrder.objects.all())
    assert sum(order.count for order in orders) == 2
    assert {order.state for order in orders} == {ReclaimState.CONFIRMED}
    assert all(order.returned_at <= order.wanted_by for order in orders if order.returned_at)
    traffic.last(2 * CALM_PERIODS + 1, busy=0.3)
    assert whereabouts() == ["inference", "on_loan", "on_loan"], "scaled down, then lent again"
    assert serving_on(agents) == [1, 0, 0]


def test_nothing_is_lent_before_a_forecast(
    inference: InferenceCluster, agents: Agents, deploy: Deploy
) -> None:
    let_pass(2 * PERIOD_SECONDS)
    schedule_inference_clusters()
    assert inference.usage_samples.count() == 1
    assert not LoanOrder.objects.exists()
    forecast_usage(inference.pk)
    schedule_inference_clusters()
    schedule_inference_clusters()
    order = LoanOrder.objects.get()
    assert order.server_names == ["serving-1", "serving-2", "serving-3"], "no deployment needs one"


def test_a_minimum_that_is_not_at_home_asks_back_once(
    agents: Agents, deploy: Deploy, traffic: Traffic, member: Membership
) -> None:
    made = deploy(maximum_servers=3)
    settle(*agents)
    traffic.last(2, busy=0.1)
    assert whereabouts() == ["inference", "on_loan", "on_loan"]
    bounds(made, member, 9, 9)
    for _ in range(3):
        schedule_inference_clusters()
    assert [order.count for order in ReclaimOrder.objects.all()] == [2], "no more than are lent"
    traffic.last(2, busy=0.1)
    assert serving_on(agents) == [1, 1, 1]
    traffic.last(2, busy=0.1)
    made.refresh_from_db()
    assert (made.state, made.reason) == (
        DeploymentState.DEGRADED,
        "3 of 9 servers answer. There is no place for 6 of 9 replicas.",
    )
    assert (ReclaimOrder.objects.count(), whereabouts()) == (1, ["inference"] * 3)


def test_an_offer_is_withdrawn_for_a_replica(
    inference: InferenceCluster, agents: Agents, deploy: Deploy, traffic: Traffic, member: Membership
) -> None:
    """A server promised for loan is needed before it is lent: it stays, and no job has to leave it."""
    made = deploy(maximum_servers=3)
    settle(*agents)
    inference.minimum_hold_seconds = 10 * PERIOD_SECONDS
    inference.save()
    Server.objects.update(lending_changed_at=timezone.now())
    traffic.last(2, busy=0.1)
    assert LoanOrder.objects.get().state == LoanState.PENDING
    bounds(made, member, 3, 3)
    steer_deployments()
    assert states(made) == ["serving"], "no replica starts on an offered server"
    schedule_inference_clusters()
    orchestrate()
    settle(*agents)
    assert serving_on(agents) == [1, 1, 1]
    assert LoanOrder.objects.get().state == LoanState.WITHDRAWN
    assert whereabouts() == ["inference"] * 3
    assert ReclaimOrder.objects.get().withdrawn == 2


def test_a_server_with_a_starting_replica_is_not_offered(
    inference: InferenceCluster, agents: Agents, deploy: Deploy, member: Membership
) -> None:
    made = deploy(maximum_servers=2)
    settle(*agents)
    let_pass(2 * PERIOD_SECONDS)
    schedule_inference_clusters()
    forecast_usage(inference.pk)
    bounds(made, member, 2, 2)
    schedule_inference_clusters()
    order = LoanOrder.objects.get()
    assert order.server_names == ["serving-3"], "serving-2 gets the second replica"
    steer_deployments()
    assert states(made) == ["serving", "starting"]
    orchestrate()
    assert whereabouts() == ["inference", "inference", "on_loan"]


def test_a_draining_replica_asks_no_server_back(
    agents: Agents, deploy: Deploy, traffic: Traffic, member: Membership
) -> None:
    """Scaled down and up again: the draining replica's server is free before another one could be back."""
    made = deploy(minimum_servers=2, maximum_servers=2)
    settle(*agents)
    traffic.last(2, busy=0.1)
    assert whereabouts() == ["inference", "inference", "on_loan"]
    bounds(made, member, 1, 1)
    steer_deployments()
    assert states(made) == ["draining", "serving"]
    bounds(made, member, 2, 2)
    schedule_inference_clusters()
    assert not ReclaimOrder.objects.exists()
    settle(*agents)
    assert states(made) == ["serving", "serving"]
    assert whereabouts() == ["inference", "inference", "on_loan"]


def test_a_reclaim_during_a_scale_down_ends_once(
    agents: Agents, deploy: Deploy, traffic: Traffic, member: Membership
) -> None:
    made = deploy(maximum_servers=3)
    settle(*agents)
    traffic.last(2, busy=0.1)
    bounds(made, member, 2, 3)
    schedule_inference_clusters()
    bounds(made, member, 1, 1)
    orchestrate()
    orchestrate()
    settle(*agents)
    assert ReclaimOrder.objects.get().state == ReclaimState.RETURNED
    assert (whereabouts().count("inference"), serving_on(agents)) == (2, [1, 0, 0])
    traffic.last(1, busy=0.1)
    assert whereabouts() == ["inference", "on_loan", "on_loan"], "it is lent again"
    assert ReclaimOrder.objects.count() == 1


def test_a_deleted_deployment_asks_nothing_back(
    agents: Agents, deploy: Deploy, traffic: Traffic, member: Membership
) -> None:
    made = deploy(maximum_servers=3)
    settle(*agents)
    traffic.last(2, busy=0.1)
    bounds(made, member, 3, 3)
    deployment_delete(deployment=made, actor=member.user)
    traffic.last(2, busy=0.0)
    assert not ReclaimOrder.objects.exists()
    assert whereabouts() == ["on_loan"] * 3


def test_an_unreachable_target_asks_nothing_back(agents: Agents, deploy: Deploy, traffic: Traffic) -> None:
    """Requests are slow though replicas are idle: more servers would not help."""
    made = deploy(maximum_servers=3, latency_target_seconds=0.1)
    settle(*agents)
    traffic.last(3, busy=0.05, latency=0.4)
    made.refresh_from_db()
    assert (made.state, made.wanted_servers) == (DeploymentState.DEGRADED, 1)
    assert not ReclaimOrder.objects.exists()
    assert whereabouts() == ["inference", "on_loan", "on_loan"]


def test_replicas_leave_a_server_that_can_be_lent(
    inference: InferenceCluster, agents: Agents, deploy: Deploy, traffic: Traffic, member: Membership
) -> None:
    first, second = deploy(minimum_servers=2, maximum_servers=2), deploy(minimum_servers=2, maximum_servers=2)
    third = deploy()
    settle(*agents)
    assert serving_on(agents) == [2, 2, 1]
    for made in (first, second):
        bounds(made, member, 1, 1)
    settle(*agents)
    deployment_delete(deployment=first, actor=member.user)
    settle(*agents)
    assert sum(serving_on(agents)) == 2
    traffic.last(3, busy=0.1)
    assert sorted(serving_on(agents)) == [0, 0, 2]
    assert whereabouts().count("on_loan") == 2
    for made in (second, third):
        assert states(made) == ["serving"]


def test_a_lost_server_asks_another_one_back(
    agents: Agents, deploy: Deploy, traffic: Traffic, inference: InferenceCluster
) -> None:
    made = deploy()
    settle(*agents)
    traffic.last(2, busy=0.1)
    assert whereabouts() == ["inference", "on_loan", "on_loan"]
    agent = Agent.objects.get(server__name="serving-1")
    Agent.objects.filter(pk=agent.pk).update(last_report_at=timezone.now() - timedelta(hours=1))
    agent.refresh_from_db()
    fence_server(agent, Cluster.objects.get())
    schedule_inference_clusters()
    orchestrate()
    assert ReclaimOrder.objects.get().count == 1
    settle(*agents[1:])
    orchestrate()
    settle(*agents[1:])
    assert sum(serving_on(agents)[1:]) == 1
    assert states(made) == ["serving"]


def test_an_external_scheduler_is_refused(inference: InferenceCluster) -> None:
    credential = credential_issue(inference_cluster=inference)
    client = APIClient(HTTP_AUTHORIZATION=f"Bearer {credential}")
    usage = {"samples": [{"period_ends_at": timezone.now().isoformat(), "usage": 0.5}]}
    orders = {
        "usage/": usage,
        "loan-orders/": {"id": str(uuid4()), "servers": []},
        "reclaim-orders/": {"id": str(uuid4()), "count": 1},
    }
    for path, body in orders.items():
        answer = client.post(f"/api/v1/inference-clusters/serving/{path}", body, format="json")
        assert answer.status_code == 409, answer.data
        assert "scheduled by its deployments" in answer.data["detail"]
    assert not inference.usage_samples.exists()
