"""Deployments schedule their inference cluster: traffic decides when servers are lent and asked back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cluster.models import Server
from deployments.choices import DeploymentState, ReplicaState
from deployments.models import Deployment
from deployments.services.deployments import deployment_change, deployment_delete
from deployments.services.lending import schedule_inference_clusters
from deployments.services.sampling import measure_deployments
from deployments.services.steering import steer_deployments
from lending.choices import LoanState, ReclaimState, ScheduledBy
from lending.models import InferenceCluster, LoanOrder, ReclaimOrder
from lending.services.forecasts import forecast_usage
from lending.services.orchestrator import orchestrate
from projects.models import Membership
from tests.control_plane.simulated_time import let_pass
from tests.deployments.conftest import Agents, Deploy, ServingAgent, settle, states

pytestmark = pytest.mark.django_db

PERIOD_SECONDS = 60.0
STEP_SECONDS = 5.0


@pytest.fixture(autouse=True)
def scheduled(inference: InferenceCluster) -> InferenceCluster:
    """The inference cluster is scheduled by its deployments."""
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
        """Let one sampling period pass in which so many servers are busy."""
        let_pass(STEP_SECONDS)
        serving = [(agent, key) for agent in self.agents for key in agent.serving()]
        for agent, key in serving:
            requests, seconds, uptime = self.counts.get(key, (0, 0.0, 0.0))
            share = min(1.0, busy / len(serving))
            self.counts[key] = (requests + 100, seconds + share * STEP_SECONDS, uptime + STEP_SECONDS)
            requests, seconds, uptime = self.counts[key]
            agent.answered(key, requests, latency, seconds, uptime)
        measure_deployments()
        schedule_inference_clusters()
        forecast_usage(InferenceCluster.objects.get().pk)
        orchestrate()
        settle(*self.agents)

    def last(self, seconds: float, busy: float, latency: float = 0.05) -> None:
        """Let the same traffic last."""
        for _ in range(round(seconds / STEP_SECONDS)):
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
    inference: InferenceCluster, agents: Agents, deploy: Deploy, traffic: Traffic
) -> None:
    made = deploy(maximum_servers=3, latency_target_seconds=0.2)
    settle(*agents)
    traffic.last(2 * PERIOD_SECONDS, busy=0.3)
    assert whereabouts() == ["inference", "on_loan", "on_loan"]
    usage = inference.usage_samples.latest("period_ends_at")
    assert usage.usage == pytest.approx(0.3 / 0.7 / 3, rel=0.05), "0.3 busy servers at a share of 0.7"
    assert usage.source == "measured"
    traffic.last(PERIOD_SECONDS, busy=1.9)
    assert whereabouts() == ["inference"] * 3
    assert serving_on(agents) == [1, 1, 1]
    made.refresh_from_db()
    assert (made.state, made.reason) == (DeploymentState.READY, "")
    orders = list(ReclaimOrder.objects.all())
    assert sum(order.count for order in orders) == 2
    assert {order.state for order in orders} == {ReclaimState.CONFIRMED}
    assert all(order.returned_at <= order.wanted_by for order in orders if order.returned_at)
    traffic.last(5 * PERIOD_SECONDS, busy=0.3)
    assert whereabouts() == ["inference", "on_loan", "on_loan"], "scaled down, then lent again"
    assert serving_on(agents) == [1, 0, 0]
