"""A rescaled job is unprotected until its new generation's first complete point, since the previous
generation's copies have another layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client

from cluster.models import Cluster, Server
from scheduling.choices import GenerationState
from scheduling.models import Generation, Job
from scheduling.services.agents.drain import server_drain
from scheduling.services.agents.leases import reconcile
from tests.control_plane.conftest import SPEED
from tests.control_plane.recoveries.scenes import Submit, go_on
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.control_plane.simulated_time import SimulatedTime
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)


STORE_BYTES = 1_000_000


@dataclass
class ShownProtection:
    """A job's protection as shown to users and to the monitoring system."""

    api: str
    newest: int | None
    panel: str
    #: Of training jobs, by protection.
    metric: dict[str, int]


def shown_protection(job: Job) -> ShownProtection:
    """Return the protection as seen by the job's owner and an operator after the next pass."""
    reconcile()
    client, operator = Client(), Client()
    client.force_login(job.owner)
    operator.force_login(UserFactory.create(is_operator=True))
    point = client.get(f"/api/v1/jobs/{job.pk}/memory-point/").json()
    note = client.get(f"/jobs/{job.pk}/panels/recovery-points/").json()["note"]
    metrics = operator.get("/metrics").content.decode()
    counted = [line for line in metrics.splitlines() if line.startswith("punctual_protection{")]
    return ShownProtection(
        point["protection"],
        None if point["memory"] is None else point["memory"]["iteration"],
        note.partition("Protection: ")[2].partition(".")[0],
        {line.split('"')[1]: int(float(line.split()[-1])) for line in counted},
    )


def keep(
    agent: SimulatedAgent, *points: tuple[Generation, int], without: int = -1, peers: bool = True
) -> None:
    """Report from the server's store its assigned shards of these (generation, iteration) points.

    ``without``: a rank of which the store has nothing. ``peers``: whether the shards of the server's own
    ranks have copies on other servers.
    """
    here = agent.agent.server_id
    holdings: list[dict[str, Any]] = []
    for generation, iteration in points:
        for rank, holders in enumerate(generation.protection["holders"]):
            if here not in holders or rank == without or (here != holders[0] and not peers):
                continue
            copies = (1 + peers, 2) if here == holders[0] else (0, 0)
            holdings.append(
                {
                    "job": generation.job_id, "generation": generation.number, "rank": rank,
                    "iteration": iteration, "bytes": 9, "reserved_bytes": 18, "age_seconds": 0.1,
                    "copies": copies[0], "wanted_copies": copies[1],
                }
            )  # fmt: skip
    answer = agent.report(memory_store={"used_bytes": 18, "limit_bytes": STORE_BYTES, "holdings": holdings})
    assert not answer.refused


def enrol(name: str, gpus: int) -> SimulatedAgent:
    """Enrol a server with room for states."""
    agent = SimulatedAgent.enrol(name, gpus, SPEED)
    Server.objects.filter(pk=agent.agent.server_id).update(memory_store_bytes=STORE_BYTES)
    return agent


def test_rescaled_job_is_unprotected_until_its_first_complete_point(
    time: SimulatedTime, cluster: Cluster, submit: Submit
) -> None:
    agents = [enrol("node-1", 2), enrol("node-2", 2), enrol("node-3", 4)]
    job = submit("best_effort", iterations=100_000)
    settle(*agents)
    old = job.generations.get(state=GenerationState.LIVE)
    for agent in agents:
        keep(agent, (old, 7))
    assert shown_protection(job) == ShownProtection("full", 7, "full", {"full": 1, "degraded": 0, "none": 0})

    server_drain(server=agents[2].agent.server, actor=UserFactory.create(is_operator=True))
    go_on(time, *agents)
    new = job.generations.get(state=GenerationState.LIVE)
    assert (old.world_size, new.world_size) == (8, 4)
    unprotected = ShownProtection("none", None, "none", {"full": 0, "degraded": 0, "none": 1})
    assert shown_protection(job) == unprotected
    # The previous generation's copies are still complete, but the new generation has another number of ranks.
    for agent in agents:
        keep(agent, (old, 7))
    assert shown_protection(job) == unprotected
    for agent in agents:
        keep(agent, (old, 7), (new, 9), without=3)
    assert shown_protection(job) == unprotected, "an incomplete point does not count"

    for agent in agents:
        keep(agent, (new, 9), peers=False)
    assert shown_protection(job) == ShownProtection(
        "degraded", 9, "degraded", {"full": 0, "degraded": 1, "none": 0}
    )
    for agent in agents:
        keep(agent, (new, 9))
    assert shown_protection(job) == ShownProtection("full", 9, "full", {"full": 1, "degraded": 0, "none": 0})
