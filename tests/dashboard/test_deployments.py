"""The pages of deployments in a real browser: drawn on every screen, with a box to send a request."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import expect

from deployments.choices import DeploymentState, ReplicaState, RolloutState
from deployments.models import Deployment, DeploymentEvent, DeploymentSample, Replica, Rollout
from punctual.protocol.latencies import LATENCY_BUCKETS, latency_bucket, latency_percentile
from tests import factories
from tests.dashboard.scenario import Scenario
from tests.dashboard.site import Site
from tests.dashboard.take_screenshots import wait_until_drawn


@pytest.fixture
def deployment(scenario: Scenario) -> Deployment:
    """A deployment in its second generation, with an hour of load, on one of two servers at home; a third one
    is lent."""
    cluster = scenario.servers[0].cluster
    inference = factories.InferenceClusterFactory.create(name="serving", cluster=cluster)
    common = {"cluster": cluster, "inference_cluster": inference, "gpus": 2}
    server = factories.InferenceServerFactory.create(name="serving-1", **common)
    factories.InferenceServerFactory.create(name="serving-2", **common)
    factories.InferenceServerFactory.create(
        name="serving-3", lending_state="on_loan", whitelist="training", **common
    )
    made = Deployment.objects.create(
        project=scenario.project, owner=scenario.owner, inference_cluster=inference, name="shapes",
        state=DeploymentState.DEGRADED, reason="1 of 2 servers answer.", minimum_servers=2,
        maximum_servers=3, wanted_servers=2, wanted_reason="1.31 servers are busy",
        latency_target_seconds=0.2, generation=2, max_batch=16, max_wait_seconds=0.005,
    )  # fmt: skip
    job, now = scenario.completed, timezone.now()
    rollout = {"deployment": made, "job": job, "function_version": job.function_version, "served_at": now}
    Rollout.objects.create(number=1, state=RolloutState.RETIRED, **rollout)
    current = Rollout.objects.create(number=2, state=RolloutState.CURRENT, **rollout)
    Replica.objects.create(
        deployment=made, rollout=current, server=server, gpu=server.gpus.get(index=0), port=21000,
        state=ReplicaState.SERVING, told_version=1, secret="its-secret",
        ring={
            "layers": 8, "sections": 6, "section_bytes": 100, "other_bytes": 50, "calls": 2, "entered": 16,
            "loads": 8, "copy_seconds": 0.16, "compute_seconds": 0.16, "stall_seconds": 0.01,
        },
    )  # fmt: skip
    DeploymentEvent.objects.create(deployment=made, kind="scaled", message="From 1 to 2 servers: busy.")
    for number in range(120):
        add_sample(made, now - timedelta(seconds=30 * (119 - number)), 0.5 + 0.45 * math.sin(number / 12))
    return made


def add_sample(deployment: Deployment, ended_at: Any, load: float) -> None:
    """Add half a minute with up to 98 requests."""
    latencies = [0] * LATENCY_BUCKETS
    for seconds, count in ((0.04, 60), (0.09, 30), (0.25 * load, 8)):
        latencies[latency_bucket(seconds)] += round(count * load)
    DeploymentSample.objects.create(
        deployment=deployment, began_at=ended_at - timedelta(seconds=30), ended_at=ended_at,
        requests=sum(latencies), inputs=2 * sum(latencies), batches=sum(latencies), busy_servers=2 * load,
        latencies=latencies, p50_seconds=latency_percentile(latencies, 0.5),
        p95_seconds=latency_percentile(latencies, 0.95), p99_seconds=latency_percentile(latencies, 0.99),
        serving=1 + (load > 0.6), wanted=1 + (load > 0.5), servers_home=2, servers_lent=1,
    )  # fmt: skip


def answer(method: str, replica: Replica, path: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
    """Answer as a replica would."""
    return 200, {"outputs": [{"shape": "ring", "sides": 4}]}


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("width", "scheme"), [pytest.param(1400, "light", marks=pytest.mark.slow), (390, "dark")]
)
def test_a_page_shows_a_deployment_and_asks_its_model(
    site: Site, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, width: int, scheme: str
) -> None:
    monkeypatch.setattr("deployments.services.predicting._send", answer)
    visit = site.visit(site.scenario.owner, width=width, scheme=scheme)
    page = visit.go("/deployments/")
    expect(page.locator("table.jobs")).to_contain_text("shapes")
    page.get_by_role("link", name="shapes").click()
    wait_until_drawn(page)
    expect(page.locator("[data-panel] .js-plotly-plot")).to_have_count(4)
    summary = page.locator('[data-fragment="summary"]')
    expect(summary).to_contain_text("2 at home, 1 lent")
    expect(summary).to_contain_text("target 200.0 ms")
    expect(summary).to_contain_text("serving-1: 4 layers on the GPU, 4 streamed from host memory")
    expect(summary).to_contain_text("a call takes 85.0 ms (predicted 80.0 ms) and waits 5.0 ms for layers")
    expect(summary.get_by_role("alert")).to_contain_text("1 of 2 servers answer.")
    assert page.locator("html").evaluate("element => element.scrollWidth") <= width
    page.get_by_label("Inputs").fill("[3]")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".answer")).to_contain_text('{"shape":"ring","sides":4}')
    expect(page.locator(".answer")).to_contain_text("serving-1, generation 2")
    page.get_by_label("Inputs").fill("nonsense")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#toasts")).to_contain_text("This is not JSON")
    expect(page.locator(".answer")).to_be_hidden()
    page.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    expect(summary).to_contain_text("Generation 3")
    visit.expect_no_trouble()
    monkeypatch.setattr("deployments.services.predicting._send", lambda *_: (400, {"detail": "Odd input."}))
    page.get_by_label("Inputs").fill("[5]")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#toasts .toast").last).to_have_text(re.compile("^Odd input\\.×?$"))


def test_a_stranger_sees_no_deployment(
    scenario: Scenario, deployment: Deployment, as_user: Callable[[Any], Client]
) -> None:
    client = as_user(scenario.stranger)
    assert "No deployment yet" in client.get("/deployments/").content.decode()
    assert client.get(f"/deployments/{deployment.pk}/").status_code == 404
