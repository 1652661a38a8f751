"""`punctual inference` against the real API; the test does what a worker does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Server
from lending.models import InferenceCluster, UsageSample
from lending.services.orchestrator import orchestrate
from projects.models import User
from punctual.cli import session
from tests.cli.conftest import Run
from tests.cli.test_real_api import log_in
from tests.factories import PASSWORD, InferenceServerFactory

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def operator(live_server: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    User.objects.create_user("olga", password=PASSWORD, is_operator=True)
    log_in(run, live_server.url, "olga", monkeypatch)


@pytest.mark.usefixtures("operator")
def test_an_operator_lends_servers_and_asks_them_back(run: Run) -> None:
    assert "No inference cluster yet" in run("inference").err
    assert run("inference", "create", "serving").code == 0
    assert run("inference", "set", "serving", "minimum_hold_seconds=0", "headroom_fraction=0.1").code == 0
    token = run("agents", "token", "--inference-cluster", "serving", "--json")
    assert json.loads(token.out)["inference_cluster"] == "serving"
    for number in range(3):
        InferenceServerFactory.create(
            name=f"serving-{number}", inference_cluster=InferenceCluster.objects.get(), gpus=2
        )
    assert "pending" in run("inference", "lend", "serving", "serving-0", "serving-1").out
    orchestrate()
    assert Server.objects.filter(lending_state="on_loan").count() == 2
    refused = run("inference", "lend", "serving", "serving-2")
    assert (refused.code, "keeps 1 of its servers" in refused.err) == (1, True)
    assert run("inference", "reclaim", "serving", "1").code == 0
    orchestrate()
    shown = run("inference", "orders", "serving")
    assert "returned" in shown.out
    with session.client() as client:
        (listed,) = client.inference.reclaim_orders("serving")
        (server,) = client.inference.reclaim_order("serving", listed["id"])["servers"]
        assert server["server"] in ("serving-0", "serving-1")
    document = json.loads(run("inference", "show", "serving", "--json").out)
    assert (document["standing"]["on_loan"], len(document["servers"])) == (1, 3)
    UsageSample.objects.create(
        inference_cluster=InferenceCluster.objects.get(), period_ends_at=timezone.now(), usage=0.5,
        source="emulated: a test",
    )  # fmt: skip
    described = run("inference", "show", "serving").out
    assert "serving-1" in described
    assert "emulated: a test" in described
    assert "Returned 1" in run("inference", "events", "serving").out
    assert run("inference", "lending", "serving", "off").code == 0
    assert "off" in run("inference").out


@pytest.mark.usefixtures("operator")
def test_impossible_requests_are_refused_in_one_line(run: Run) -> None:
    assert run("inference", "show", "nowhere").code == 4
    run("inference", "create", "serving")
    assert run("inference", "lending", "serving", "perhaps").code == 2
    assert run("inference", "set", "serving", "headroom_fraction=7").code == 2
    assert run("inference", "create", "serving").code == 1
    assert run("inference", "credential", "serving").out.startswith("ps_")
