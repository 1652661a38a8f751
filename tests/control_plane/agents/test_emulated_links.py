"""Emulated links in messages between agents, database, API and workers."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.links import links_of
from cluster.models import Server
from emulated_links.rates import DEFAULT_LINKS, ServerLinks
from scheduling.choices import Purpose
from scheduling.models import CurveLevel
from scheduling.selectors.agents.desired_state import desired_state
from tests.control_plane.agent_api import busy_server, event, send, training_job
from tests.factories import ClusterFactory, GenerationFactory, JobFactory, ScalingCurveFactory, ServerFactory

LINKS = ServerLinks.from_message(DEFAULT_LINKS).to_message()
INVENTORY = {"gpus": [{"index": 0, "kind": "emulated-a100", "emulated": True}], "links": LINKS}

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]


def _refused(answer: Any) -> list[str]:
    return [item["part"] for item in answer.json()["refused"]]


def test_links_have_the_rates_and_load_that_the_agent_reports() -> None:
    server = busy_server("n1")
    assert links_of(server) == []
    load = {"network": {"gradients": 2e8, "state": 1e8}}
    answer = send(server, {"inventory": INVENTORY, "link_load": load})
    assert _refused(answer) == []
    links = {link.name: link for link in links_of(Server.objects.select_related("agent").get(pk=server.pk))}
    assert links["network"].bytes_per_second == links["network_in"].bytes_per_second == 1e9
    assert links["network"].load == pytest.approx(0.3)
    assert links["network_in"].load_bytes_per_second == {}
    assert all(link.emulated for link in links.values())
    send(server, {"link_load": {}})
    assert all(link.load == 0 for link in links_of(Server.objects.select_related("agent").get(pk=server.pk)))


@pytest.mark.parametrize(
    "load",
    [
        {"token_ring": {"state": 1.0}},
        {"network": {"gossip": 1.0}},
        {"network": {"state": -1.0}},
        {"network": {"state": 1e300}},
        {"network": 5},
        [1],
        "much",
    ],
)
def test_a_load_that_makes_no_sense_spoils_nothing_but_itself(load: Any) -> None:
    server = busy_server("n1")
    answer = send(server, {"inventory": INVENTORY, "link_load": load})
    assert answer.status_code == 200
    assert _refused(answer) == ["link_load"]
    server.agent.refresh_from_db()
    assert server.agent.link_load == {}
    server.refresh_from_db()
    assert server.links is not None
    assert server.links["disk"] == {"bytes_per_second": 5e8, "latency_seconds": 0.0}


def test_links_that_make_no_sense_are_refused_with_their_inventory() -> None:
    server = busy_server("n1")
    answer = send(server, {"inventory": {**INVENTORY, "links": {"network": {}}}})
    assert _refused(answer) == ["inventory"]
    server.refresh_from_db()
    assert server.links is None


def test_generation_ranks_receive_their_server_and_rack_groups() -> None:
    cluster = ClusterFactory.create()
    servers = [
        ServerFactory.create(cluster=cluster, name=f"n{number}", rack=rack, gpus=2)
        for number, rack in enumerate(("west", "east", "west"))
    ]
    gpus = [gpu for server in servers for gpu in server.gpus.all()]
    generation = GenerationFactory.create(
        job=JobFactory.create(cluster=cluster),
        master_server=servers[0],
        gpus=gpus,
        world_size=6,
        held_at=servers[0].created_at,
    )
    for server in servers:
        (entry,) = desired_state(server.pk)["generations"]
        assert entry["places"] == {"servers": [0, 0, 1, 1, 2, 2], "racks": [0, 0, 1, 1, 0, 0]}
        assert len(entry["workers"]) == 2
    assert generation.world_size == 6


@pytest.mark.parametrize(
    ("overrun", "void"), [(None, False), (0.0, False), (0.05, False), (0.2, True)], ids=str
)
def test_level_measured_below_the_emulated_pace_is_stored_as_void(overrun: float | None, void: bool) -> None:
    server = busy_server("n1")
    job, generation = training_job(server)
    curve = ScalingCurveFactory.create(levels={})
    generation.purpose, generation.curve = Purpose.PROFILING, curve
    generation.save()
    fields = {} if overrun is None else {"overrun": overrun}
    assert _refused(send(server, {"events": [event(generation, "profile_level", **fields)]})) == []
    level = CurveLevel.objects.get(curve=curve)
    assert (level.overrun, level.void) == (overrun, void)
    assert level.iterations_per_second == 9.0
    assert any("void" in line.message for line in job.events.all()) == void
