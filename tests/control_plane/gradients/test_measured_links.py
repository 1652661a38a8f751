"""Workers that exchange rows of experts receive the measured link between their servers."""

from __future__ import annotations

import pytest
from django.utils import timezone

from cluster.models import Server, ServerLink
from communication.profiles.link import LinkRate
from scheduling.core.runtime_plans.choosing import choose_runtime_plan
from scheduling.services.gradients.measured_links import with_measured_link
from tests.control_plane.agent_api import busy_server

pytestmark = pytest.mark.django_db


@pytest.fixture
def servers() -> list[Server]:
    created = [busy_server(name) for name in ("node-a", "node-b")]
    for server in created:
        server.links = None
        server.save(update_fields=["links"])
    return created


def measure(servers: list[Server]) -> None:
    first, second = sorted(servers, key=lambda server: server.pk)
    ServerLink.objects.update_or_create(
        first=first,
        second=second,
        defaults={"latency_seconds": 1e-4, "bytes_per_second": 2e9, "measured_at": timezone.now()},
    )


def test_a_plan_has_the_measured_link_of_its_servers(servers: list[Server]) -> None:
    places = [servers[0].pk, servers[0].pk, servers[1].pk, servers[1].pk]
    plan = choose_runtime_plan(places, "moe")
    assert with_measured_link(plan, places) == plan
    measure(servers)
    assert with_measured_link(plan, places).link == LinkRate(1e-4, 2e9)
    assert with_measured_link(plan, places[:2]).link is None


def test_a_plan_without_experts_stays_as_it_is(servers: list[Server]) -> None:
    measure(servers)
    places = [server.pk for server in servers]
    assert with_measured_link(choose_runtime_plan(places), places).link is None
