"""Which agent may enrol as which server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.test.utils import override_settings

from cluster.models import Agent, EnrolmentToken, Server
from projects.models import token_digest
from scheduling.services.agents.enrolment import agent_revoke, enrolment_token_create
from tests import factories as make

pytestmark = pytest.mark.django_db


def enrol(name: str, token: str, credential: str | None = None, **more: Any) -> Any:
    """Return the agent API's answer to an enrolment under that server name."""
    body = {
        "token": token,
        "name": name,
        "address": "203.0.113.66",
        "port_range": [20_000, 20_100],
        "inventory": {"gpus": [{"index": 0, "kind": "emulated-a100", "emulated": True}]},
        **more,
    }
    headers = {} if credential is None else {"Authorization": f"Agent {credential}"}
    with override_settings(ROOT_URLCONF="config.urls_agents"):
        return Client().post(
            "/agent/v1/enrol", json.dumps(body), content_type="application/json", headers=headers
        )


@pytest.fixture
def server() -> Server:
    created: Server = make.ServerFactory.create(name="node-a", agent="agent_secret")
    return created


def untouched(server: Server) -> bool:
    agent = Agent.objects.select_related("server").get(server__name="node-a")
    return (agent.credential_digest, agent.server.address) == (token_digest("agent_secret"), "127.0.0.1")


def test_token_without_a_name_enrols_only_new_servers(server: Server) -> None:
    token = enrolment_token_create(created_by=None)
    answer = enrol("node-a", token)
    assert (answer.status_code, answer.json()["code"]) == (401, "enrolment_refused")
    assert "token for node-a" in answer.json()["detail"]
    assert untouched(server)
    # The refusal spent nothing.
    assert EnrolmentToken.objects.get().used_at is None
    assert enrol("node-b", token).status_code == 201


@pytest.mark.parametrize("named", [False, True])
def test_server_names_differing_only_in_case_are_refused(server: Server, named: bool) -> None:
    token = enrolment_token_create(created_by=None, server_name="NODE-A" if named else "")
    answer = enrol("NODE-A", token)
    assert (answer.status_code, answer.json()["code"]) == (401, "enrolment_refused")
    assert answer.json()["detail"].startswith("There is a server node-a already, and NODE-A differs")
    assert Server.objects.get() == server


def test_a_server_is_known_with_the_domains_that_fail_with_it() -> None:
    token = enrolment_token_create(created_by=None)
    assert enrol("node-b", token, rack="r1", power_domain="feed-a").status_code == 201
    assert Server.objects.values_list("rack", "power_domain").get(name="node-b") == ("r1", "feed-a")
    too_long = enrol("node-c", enrolment_token_create(created_by=None), power_domain="x" * 10_000)
    assert too_long.status_code == 400
    assert not Server.objects.filter(name="node-c").exists()


def test_token_with_its_name_re_enrols_a_server(server: Server) -> None:
    answer = enrol("node-a", enrolment_token_create(created_by=None, server_name="node-a"))
    assert (answer.status_code, answer.json()["server_id"]) == (201, server.pk)
    assert not untouched(server)


def test_own_agent_may_re_enrol_its_server_with_any_token(server: Server) -> None:
    answer = enrol("node-a", enrolment_token_create(created_by=None), "agent_secret")
    assert (answer.status_code, answer.json()["server_id"]) == (201, server.pk)


def test_foreign_and_revoked_agents_may_not_re_enrol_a_server(server: Server) -> None:
    make.ServerFactory.create(name="node-b", agent="agent_of_b")
    assert enrol("node-a", enrolment_token_create(created_by=None), "agent_of_b").status_code == 401
    agent_revoke(agent=server.agent)
    assert enrol("node-a", enrolment_token_create(created_by=None), "agent_secret").status_code == 401
    assert untouched(server)


def test_named_token_enrols_only_that_name(server: Server) -> None:
    token = enrolment_token_create(created_by=None, server_name="node-c")
    assert enrol("node-a", token).status_code == 401
    assert enrol("node-d", token).status_code == 401
    assert untouched(server)
