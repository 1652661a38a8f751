"""Experts of a deployment spread over two servers by real agents: asked, killed, asked again, deleted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from launch import Platform
from punctual.client import Client
from tests.end_to_end.conftest import EXAMPLES, started_platform, wait_for, wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

QUESTION = "three plus four is"
SERVERS = 2
EXPERTS = 8


@pytest.fixture
def platform() -> Iterator[Platform]:
    """A platform with two inference servers."""
    yield from started_platform(inference_agents=SERVERS, agents=1)


def pid_that_listens(address: str) -> int:
    """Return the id of the process that serves at `http://host:port`."""
    port = int(address.rpartition(":")[2])
    (found,) = {
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    assert found is not None
    return found


def serving(client: Client, deployment: str) -> dict[str, Any] | None:
    """Return the deployment if its whole group serves."""
    shown = client.deployments.get(deployment)
    states = [replica["state"] for replica in shown["replicas"]]
    return shown if states == ["serving"] * SERVERS else None


def test_a_group_answers_and_starts_again_after_a_kill(platform: Platform) -> None:
    with Client(platform.web_url, token="") as anonymous:
        token = anonymous.login(*platform.demo_login)
    with Client(platform.web_url, token, retry_seconds=60.0) as person:
        job = person.submit(
            EXAMPLES / "moe_language_model.py",
            name="mixture",
            batch_size=32,
            max_iterations=30,
            project="demo",
        )
        wait_for(job, lambda job: job.state == "completed", "it completes", seconds=300)
        bounds = {"min": SERVERS, "max": SERVERS}
        made = person.deployments.create(job.id, name="spread", servers=bounds, experts="spread")["id"]
        before = wait_until(lambda: serving(person, made), "the group serves", seconds=120)
        answer = person.deployments.predict(made, [QUESTION])
        assert len(answer) == 1
        experts = wait_until(
            lambda: (found := person.deployments.experts(made))["layers"] and found, "a report", seconds=60
        )
        assert len(experts["servers"]) == SERVERS
        assert {len(layer["hosts"]) for layer in experts["layers"]} == {EXPERTS}
        os.kill(pid_that_listens(before["replicas"][1]["address"]), signal.SIGKILL)
        old = {replica["address"] for replica in before["replicas"]}

        def is_replaced() -> bool:
            found = serving(person, made)
            return found is not None and not old & {replica["address"] for replica in found["replicas"]}

        wait_until(is_replaced, "another group serves", seconds=120)
        assert person.deployments.predict(made, [QUESTION]) == answer
        person.deployments.delete(made)
        wait_until(lambda: person.deployments.get(made)["state"] == "stopped", "it has stopped", seconds=120)
