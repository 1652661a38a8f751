"""Agents' reports of replicas: checked against the sender, summed in samples, used by scaling."""

from __future__ import annotations

from uuid import uuid4

import pytest

from cluster.models import Server
from deployments.api.metrics import deployment_metrics
from deployments.choices import DeploymentState
from deployments.core.scaling import CALM_PERIODS
from deployments.services.sampling import measure_deployments
from deployments.services.steering import steer_deployments
from lending.choices import OrderSource
from lending.models import InferenceCluster
from lending.services.loans import NotLent, loan_order_create
from lending.services.orchestrator import orchestrate
from tests.control_plane.simulated_time import let_pass
from tests.deployments.conftest import Agents, Deploy, settle, states

pytestmark = pytest.mark.django_db


def metrics() -> dict[tuple[str, str], float]:
    """Return the only deployment's values in `/metrics`, by name and last label."""
    return {
        (sample.name, [*sample.labels.values()][-1]): sample.value
        for family in deployment_metrics()
        for sample in family.samples
    }


def test_metrics_count_requests_and_servers(agents: Agents, deploy: Deploy) -> None:
    assert metrics() == {}
    made = deploy(maximum_servers=2, latency_target_seconds=0.2)
    settle(*agents)
    (key,) = agents[0].serving()
    for requests in (10, 30):
        agents[0].answered(key, requests, 0.1, 1.0, 9.0, failed=requests // 10, refused=1, rejected=2)
        measure_deployments()
    values = metrics()
    outcomes = ("answered", "failed", "refused", "rejected")
    assert [values["punctual_deployment_requests_total", outcome] for outcome in outcomes] == [27, 3, 1, 2]
    kinds = ("serving", "wanted", "min", "max")
    assert [values["punctual_deployment_servers", kind] for kind in kinds] == [1, 2, 1, 2]
    assert values["punctual_deployment_inputs_total", made.pk] == 60
    assert values["punctual_deployment_latency_target_seconds", made.pk] == 0.2
    assert values["punctual_deployment_state", "ready"] == 1


def test_reports_are_checked_against_their_sender(agents: Agents, deploy: Deploy) -> None:
    made = deploy()
    settle(*agents)
    (key,) = agents[0].serving()
    entry = {"key": "x", "job": key, "generation": 1, "rank": 0, "gpu_index": 0, "phase": "failed"}
    event = {"id": str(uuid4()), "kind": "failed", "reason": "killed", "job": key, "generation": 1}
    report = {"boot_id": "boot", "sequence": agents[1].sequence + 1}
    answer = agents[1].send(
        report
        | {
            "workers": [entry],
            "events": [event],
            "serving": [{"job": key, "generation": 1, "requests": 5}],
            "logs": [{"job": key, "generation": 1, "rank": 0, "offset": 0, "text": "x"}],
        }
    )
    assert sorted(item["part"] for item in answer.refused) == ["events", "logs", "serving", "workers"]
    wrong = [entry | {"gpu_index": 1}, entry | {"rank": 1}, entry | {"generation": 2}]
    for number, strange in enumerate(wrong, start=1):
        report = {"boot_id": "boot", "sequence": agents[0].sequence + number}
        answer = agents[0].send(report | {"workers": [strange, entry | {"phase": "serving"}]})
        assert [item["part"] for item in answer.refused] == ["workers"]
    assert states(made) == ["serving"]
    assert made.replicas.get().counts == {}


def test_counts_that_shrink_change_nothing(agents: Agents, deploy: Deploy) -> None:
    made = deploy()
    settle(*agents)
    (key,) = agents[0].serving()
    agents[0].answered(key, 10, 0.1, busy_seconds=1.0, uptime=2.0)
    agents[0].answered(key, 5, 0.1, busy_seconds=0.5, uptime=1.0)
    assert made.replicas.get().counts["requests"] == 10
    answer = agents[0].answered(key, 12, 0.1, busy_seconds=1.0, uptime=2.0, latencies=[13])
    assert [item["part"] for item in answer.refused] == ["serving"]
    measure_deployments()
    measure_deployments()
    assert list(made.samples.values_list("requests", "inputs")) == [(10, 20), (0, 0)]


def test_load_adds_a_server_and_calm_removes_it(agents: Agents, deploy: Deploy) -> None:
    made = deploy(maximum_servers=3, latency_target_seconds=0.2)
    settle(*agents)
    (key,) = agents[0].serving()
    agents[0].answered(key, 100, 0.19, busy_seconds=8.0, uptime=10.0)
    measure_deployments()
    made.refresh_from_db()
    assert made.wanted_servers == 2
    assert "busy" in made.wanted_reason
    settle(*agents)
    assert [len(agent.serving()) for agent in agents] == [1, 1, 0]
    sample = made.samples.latest("ended_at")
    assert sample.busy_servers == pytest.approx(0.8)
    assert sample.p95_seconds == pytest.approx(0.19, rel=0.15)
    latencies = {
        key: value
        for key, value in metrics().items()
        if key[0] == "punctual_deployment_latency_seconds_bucket"
    }
    assert {value for (_, bound), value in latencies.items() if bound == "+Inf" or float(bound) > 0.25} == {
        100
    }
    assert {value for (_, bound), value in latencies.items() if bound != "+Inf" and float(bound) < 0.1} == {0}
    for _ in range(CALM_PERIODS):
        measure_deployments()
    settle(*agents)
    made.refresh_from_db()
    assert made.wanted_servers == 1
    assert sum(len(agent.serving()) for agent in agents) == 1


def test_calm_lowers_the_target_though_some_replicas_have_no_place(agents: Agents, deploy: Deploy) -> None:
    made = deploy(servers=5, maximum_servers=5)
    settle(*agents)
    assert states(made) == ["serving"] * 3
    for _ in range(CALM_PERIODS):
        measure_deployments()
    made.refresh_from_db()
    assert made.wanted_servers == 4


def test_a_minute_above_the_target_is_degraded(agents: Agents, deploy: Deploy) -> None:
    made = deploy(latency_target_seconds=0.1)
    settle(*agents)
    (key,) = agents[0].serving()
    for number in range(1, 15):
        let_pass(5.0)
        agents[0].answered(key, 10 * number, 0.5, busy_seconds=0.01 * number, uptime=5.0 * number)
        measure_deployments()
    steer_deployments()
    made.refresh_from_db()
    assert made.state == DeploymentState.DEGRADED
    assert made.reason == "The 95th percentile has been above 100 ms for a minute."
    let_pass(5.0)
    measure_deployments()
    steer_deployments()
    made.refresh_from_db()
    assert (made.state, made.reason) == (DeploymentState.READY, "")


def test_logs_keep_their_newest_part(agents: Agents, deploy: Deploy) -> None:
    made = deploy()
    settle(*agents)
    (key,) = agents[0].serving()
    piece = {"job": key, "generation": 1, "rank": 0}
    agents[0].report(logs=[piece | {"offset": 0, "text": "loading\n"}])
    agents[0].report(
        logs=[piece | {"offset": 0, "text": "again\n"}, piece | {"offset": 8, "text": "ready\n"}]
    )
    assert made.replicas.get().log == "loading\nready\n"


def test_a_server_that_serves_is_not_lent(
    inference: InferenceCluster, agents: Agents, deploy: Deploy
) -> None:
    deploy()
    settle(*agents)

    def lend(*names: str) -> None:
        loan_order_create(
            inference_cluster=inference,
            order_id=uuid4(),
            server_names=names,
            source=OrderSource.OPERATOR,
        )

    with pytest.raises(NotLent, match="serving requests: serving-1"):
        lend("serving-1", "serving-2")
    lend("serving-2")
    deploy(minimum_servers=2, maximum_servers=2)
    settle(*agents)
    orchestrate()
    states = list(Server.objects.order_by("name").values_list("lending_state", flat=True))
    assert states == ["inference", "on_loan", "inference"], "no replica starts on an offered server"
    assert agents[1].workers == {}
