"""The whole life of a deployment through REST, with simulated agents."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from projects.models import Membership
from tests.deployments.conftest import Agents, Deploy, completed_job, settle

URL = "/api/v1/deployments/"

pytestmark = pytest.mark.django_db


def test_a_job_is_deployed_answers_and_is_deleted(
    agents: Agents, member: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, bytes | None]] = []

    def answer(
        method: str, replica: object, path: str, body: bytes | None = None
    ) -> tuple[int, dict[str, object]]:
        sent.append((path, body))
        return 200, {"outputs": [3, 4], "generation": 1}

    monkeypatch.setattr("deployments.services.predicting._send", answer)
    client = APIClient()
    client.force_authenticate(member.user)
    job = completed_job(member)
    made = client.post(URL, {"job": job.pk, "servers": {"min": 2, "max": 2}}, format="json")
    assert made.status_code == 201, made.data
    assert (made.data["state"], made.data["servers"]["wanted"]) == ("preparing", 2)
    settle(*agents)
    address = f"{URL}{made.data['id']}/"
    shown = client.get(address).data
    assert (shown["state"], shown["reason"]) == ("ready", "")
    assert [replica["state"] for replica in shown["replicas"]] == ["serving", "serving"]
    assert {replica["server"] for replica in shown["replicas"]} == {"serving-1", "serving-2"}
    predicted = client.post(f"{address}predict/", {"inputs": [1, 2]}, format="json")
    assert (predicted.status_code, predicted.data["outputs"]) == (200, [3, 4])
    assert sent == [("/predict", b'{"inputs": [1, 2]}')]
    assert client.delete(address).data["state"] == "draining"
    settle(*agents)
    assert client.get(address).data["state"] == "stopped"
    assert [agent.workers for agent in agents] == [{}, {}, {}]


def test_a_bundle_is_read_only_for_its_first_deployment(
    agents: Agents, deploy: Deploy, member: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = completed_job(member)
    deploy(job)

    def read_again(*_: object) -> None:
        raise AssertionError("the bundle is read again")

    monkeypatch.setattr("deployments.selectors.servable.read_bundle_apart", read_again)
    deploy(job, name="another")
