"""The demo's initial users and its servers in training and in an inference cluster."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from cluster.models import EnrolmentToken
from lending.models import InferenceCluster

pytestmark = pytest.mark.django_db

LOGINS = {
    "PUNCTUAL_DEMO_USER": "demo",
    "PUNCTUAL_DEMO_PASSWORD": "a long enough password",
    "PUNCTUAL_OPERATOR_USER": "operator",
    "PUNCTUAL_OPERATOR_PASSWORD": "another long password",
}


@pytest.fixture(autouse=True)
def logins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUNCTUAL_INFERENCE_CREDENTIAL", raising=False)
    for name, value in LOGINS.items():
        monkeypatch.setenv(name, value)


def bootstrap(*arguments: str) -> dict[str, Any]:
    printed = StringIO()
    call_command("bootstrap_demo", *arguments, stdout=printed)
    answer: dict[str, Any] = json.loads(printed.getvalue())
    return answer


def test_enrolment_token_carries_the_home_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNCTUAL_INFERENCE_CREDENTIAL", "ps_secret")
    asked = ["--agent", "node-1", "--inference-cluster", "serving", "--inference-agent", "serving-1"]
    first = bootstrap(*asked)
    assert set(first["agents"]) == {"node-1", "serving-1"}
    serving = InferenceCluster.objects.get()
    homes = EnrolmentToken.objects.values_list("server_name", "inference_cluster__name", "cluster_id")
    assert set(homes) == {
        ("node-1", None, serving.cluster_id), ("serving-1", "serving", serving.cluster_id),
    }  # fmt: skip
    # Again: the same inference cluster, and other tokens.
    assert set(bootstrap(*asked)["agents"].values()).isdisjoint(first["agents"].values())
    assert InferenceCluster.objects.get() == serving


def test_bootstrap_without_inference_credential_creates_nothing() -> None:
    with pytest.raises(CommandError, match="PUNCTUAL_INFERENCE_CREDENTIAL"):
        bootstrap("--agent", "node-1", "--inference-cluster", "serving")
    assert not EnrolmentToken.objects.exists()
