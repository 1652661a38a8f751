"""Links between servers: which are measured when, what is stored, and what plans use."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from cluster.link_pairs import MOST_WITH_ALL_PAIRS, apart, pairs_of
from cluster.models import Agent, Cluster, Gpu, Server, ServerLink
from communication.profiles.link import LinkRate
from emulated_links.rates import DEFAULT_LINKS, ServerLinks
from scheduling.choices import AssignmentState, GenerationState
from scheduling.link_drift import link_moved
from scheduling.models import Assignment
from scheduling.selectors.agents.desired_state import desired_state
from scheduling.selectors.network.link_matrix import link_matrix
from scheduling.selectors.network.link_profiles import known_links
from scheduling.selectors.network.network import DEFAULT_RATE, network_of
from scheduling.services.agents import link_probes
from scheduling.services.agents.link_probes import (
    MEASURE_AGAIN,
    PROBE_TIMEOUT,
    TRY_AGAIN,
    ask_for_measurements,
)
from scheduling.services.generations.server_ports import take_ports
from scheduling.services.rows.records import lock_cluster
from tests.control_plane.agent_api import busy_server, send
from tests.factories import GenerationFactory, JobFactory
from workers.agent.orders.desired_state import parse_desired_state

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]

KIND = "emulated-a100"
FIGURES = {"latency_seconds": 2e-4, "bytes_per_second": 1e9}


@pytest.fixture
def servers() -> list[Server]:
    enrolled = [busy_server(name) for name in ("node-a", "node-b", "node-c")]
    renew_reports()
    return enrolled


def renew_reports() -> None:
    """Renew the last report of all agents."""
    Agent.objects.update(last_report_at=timezone.now())


def report_measurement(server: Server, about: ServerLink, **changes: Any) -> list[dict[str, Any]]:
    """Report a measurement as that agent; return the refused items."""
    report = {"link": about.pk, "number": about.number, **FIGURES, **changes}
    answer = send(server, {"link_probe": report})
    assert answer.status_code == 200
    refused: list[dict[str, Any]] = answer.json()["refused"]
    return refused


def measure_link(server: Server, **changes: Any) -> ServerLink:
    """Measure one link of the server and return it."""
    ask_for_measurements()
    link = ServerLink.objects.get(first=server, asked_at__isnull=False)
    assert report_measurement(server, link, **changes) == []
    link.refresh_from_db()
    return link


def spread_job(*servers: Server) -> Any:
    """Return a job with a worker on each of these servers."""
    gpus = [Gpu.objects.get(server=server, index=0) for server in servers]
    return GenerationFactory.create(
        job=JobFactory.create(cluster=servers[0].cluster), master_server=servers[0], gpus=gpus
    )


def age_links(age: timedelta) -> None:
    """Let this much time pass."""
    for name in ("asked_at", "tried_at", "measured_at"):
        for link in ServerLink.objects.filter(**{f"{name}__isnull": False}):
            setattr(link, name, getattr(link, name) - age)
            link.save(update_fields=[name])
    renew_reports()


def test_two_idle_servers_are_asked_to_measure_their_link(servers: list[Server]) -> None:
    first, second, third = servers
    before = Server.objects.get(pk=first.pk).desired_version
    assert ask_for_measurements() == 1
    link = ServerLink.objects.get()
    assert (link.first, link.second) == (first, second)
    calls = parse_desired_state(desired_state(first.pk)).link_probe
    answers = parse_desired_state(desired_state(second.pk)).link_probe
    assert calls is not None
    assert answers is not None
    assert (calls.calls, answers.calls) == (True, False)
    assert (calls.server, calls.here, calls.address) == ("node-b", "node-a", second.address)
    assert calls.key == answers.key
    assert calls.secret == answers.secret
    assert calls.port == answers.port
    assert second.port_first <= calls.port <= second.port_last
    assert desired_state(third.pk)["link_probe"] is None
    assert Server.objects.get(pk=first.pk).desired_version > before
    assert ask_for_measurements() == 0, "a server measures one link at a time"


def test_no_worker_gets_the_port_on_which_a_link_is_measured(servers: list[Server]) -> None:
    ask_for_measurements()
    link = ServerLink.objects.get()
    Server.objects.filter(pk=link.second_id).update(port_next=link.port)
    (ports,) = take_ports([[link.second_id]])
    assert ports != [link.port]


def test_measured_link_is_stored_and_measured_again_later(servers: list[Server]) -> None:
    link = measure_link(servers[0])
    assert (link.latency_seconds, link.bytes_per_second) == (2e-4, 1e9)
    assert (link.asked_at, link.secret, link.problem, link.emulated) == (None, "", "", False)
    assert desired_state(servers[0].pk)["link_probe"] is None
    while ask_for_measurements():
        current = ServerLink.objects.select_related("first").get(asked_at__isnull=False)
        assert current.pk != link.pk, "all other links come first"
        report_measurement(current.first, current)
    assert ServerLink.objects.filter(measured_at__isnull=False).count() == 3
    age_links(MEASURE_AGAIN + timedelta(seconds=1))
    assert ask_for_measurements() == 1
    link.refresh_from_db()
    assert link.number == 2


@pytest.mark.parametrize(
    ("spread", "requests"), [((0, 1), 0), ((1, 2), 0), ((0,), 1)], ids=["both", "one", "within a server"]
)
def test_links_that_a_job_uses_are_not_measured(
    servers: list[Server], spread: tuple[int, ...], requests: int
) -> None:
    Server.objects.filter(pk=servers[2].pk).update(drain="drained")
    generation = spread_job(*(servers[place] for place in spread))
    assert ask_for_measurements() == requests
    Assignment.objects.filter(generation=generation).update(
        state=AssignmentState.RELEASED, released_at=timezone.now()
    )
    assert ask_for_measurements() == 1 - requests


@pytest.mark.parametrize("ended", [False, True])
def test_link_measurement_beside_a_job_is_discarded(servers: list[Server], ended: bool) -> None:
    before = measure_link(servers[0])
    age_links(MEASURE_AGAIN + timedelta(seconds=1))
    Server.objects.filter(pk=servers[2].pk).update(drain="drained")
    ask_for_measurements()
    generation = spread_job(*servers[:2])
    if ended:
        generation.assignments.update(state=AssignmentState.RELEASED, released_at=timezone.now())
    link = ServerLink.objects.get(asked_at__isnull=False)
    assert report_measurement(servers[0], link, bytes_per_second=5.0) == []
    link.refresh_from_db()
    assert link.bytes_per_second == before.bytes_per_second
    assert "jobs used" in link.problem
    assert link.asked_at is None


def test_a_measurement_without_result_is_tried_again(servers: list[Server]) -> None:
    Server.objects.filter(pk=servers[2].pk).update(drain="drained")
    ask_for_measurements()
    link = ServerLink.objects.get()
    report_measurement(servers[0], link, problem="no route", latency_seconds=None, bytes_per_second=None)
    link.refresh_from_db()
    assert (link.problem, link.measured_at) == ("no route", None)
    assert ask_for_measurements() == 0
    age_links(TRY_AGAIN + timedelta(seconds=1))
    assert ask_for_measurements() == 1
    age_links(PROBE_TIMEOUT + timedelta(seconds=1))
    assert ask_for_measurements() == 0
    link.refresh_from_db()
    assert "did not answer" in link.problem
    assert link.asked_at is None


def test_server_of_a_running_measurement_gets_no_second_one(servers: list[Server]) -> None:
    ask_for_measurements()
    Server.objects.filter(pk=servers[0].pk).update(drain="drained")
    assert ask_for_measurements() == 0


def test_result_stored_just_before_the_timeout_stays(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    Server.objects.filter(pk=servers[2].pk).update(drain="drained")
    ask_for_measurements()
    age_links(PROBE_TIMEOUT + timedelta(seconds=1))

    def lock_after_the_result(cluster_id: int) -> Cluster:
        report_measurement(servers[0], ServerLink.objects.get())
        return lock_cluster(cluster_id)

    monkeypatch.setattr(link_probes, "lock_cluster", lock_after_the_result)
    ask_for_measurements()
    link = ServerLink.objects.get()
    assert (link.problem, link.bytes_per_second) == ("", FIGURES["bytes_per_second"])


@pytest.mark.parametrize(
    ("changes", "sender", "refused"),
    [
        ({}, 1, True),
        ({}, 2, True),
        ({"link": 10**6}, 0, True),
        ({"bytes_per_second": 0}, 0, True),
        ({"bytes_per_second": 1e300}, 0, True),
        ({"latency_seconds": -1}, 0, True),
        ({"latency_seconds": None}, 0, True),
        ({"bytes_per_second": "fast"}, 0, True),
        ({"number": 9}, 0, False),
    ],
)
def test_only_the_requested_measurement_and_sender_are_accepted(
    servers: list[Server], changes: dict[str, Any], sender: int, refused: bool
) -> None:
    ask_for_measurements()
    link = ServerLink.objects.get()
    answer = report_measurement(servers[sender], link, **changes)
    assert [item["part"] for item in answer] == (["link_probe"] if refused else [])
    link.refresh_from_db()
    assert link.measured_at is None
    assert link.asked_at is not None


@pytest.mark.parametrize("silent", ["fenced", "silent", "down"])
def test_silent_servers_measure_no_links(servers: list[Server], silent: str) -> None:
    Server.objects.filter(pk=servers[2].pk).update(drain="drained")
    agents = Agent.objects.filter(server=servers[0])
    if silent == "fenced":
        agents.update(fenced_at=timezone.now())
    elif silent == "silent":
        agents.update(last_report_at=timezone.now() - timedelta(hours=1))
    else:
        Server.objects.filter(pk=servers[0].pk).update(state="down")
    assert ask_for_measurements() == 0


def test_plans_assume_the_slowest_link(servers: list[Server]) -> None:
    assert known_links(KIND).source == "default"
    assert known_links(KIND).profile.between == DEFAULT_RATE
    measure_link(servers[0])
    rates = {servers[1].pk: 5e8, servers[2].pk: 2e9}
    while ask_for_measurements():
        link = ServerLink.objects.select_related("first").get(asked_at__isnull=False)
        report_measurement(link.first, link, bytes_per_second=rates[link.second_id], latency_seconds=1e-4)
    links = known_links(KIND)
    assert (links.source, links.emulated) == ("measured", False)
    assert links.profile.between == LinkRate(2e-4, 1e9)
    network = network_of(servers)
    assert network.slowest([servers[1].pk, servers[2].pk]).rate == LinkRate(1e-4, 2e9)


def test_emulated_links_are_labelled_and_used_until_measured(servers: list[Server]) -> None:
    emulated = ServerLinks.from_message(DEFAULT_LINKS).to_message()
    Server.objects.update(links=emulated)
    known_before = known_links(KIND)
    assert (known_before.source, known_before.emulated) == ("emulated", True)
    assert known_before.profile.between.bytes_per_second == 1e9
    measure_link(servers[0], bytes_per_second=9e8)
    matrix = link_matrix(timezone.now())
    assert matrix.servers == ("node-a", "node-b", "node-c")
    links = {(link.first, link.second): link for link in matrix.links}
    assert links["node-a", "node-b"].source == "measured"
    assert links["node-a", "node-b"].emulated
    assert links["node-a", "node-c"].source == "emulated"


def test_unmeasured_link_has_the_usual_rate_of_a_measured_server() -> None:
    many = [busy_server(f"n{number}") for number in range(4)]
    ids = [server.pk for server in many]
    for other, rate in ((1, 1e9), (2, 3e9)):
        ServerLink.objects.create(
            first=many[0], second=many[other], latency_seconds=1e-4, bytes_per_second=rate,
            measured_at=timezone.now(),
        )  # fmt: skip
    network = network_of(many)
    assert network.rate(ids[1], ids[2]).rate.bytes_per_second == 1e9
    assert network.rate(ids[0], ids[3]).source == "default"


def test_links_move_by_a_fifth() -> None:
    planned = LinkRate(1e-3, 1e9)
    for rate, moved in (((1e-3, 1.19e9), False), ((1e-3, 1.21e9), True), ((1e-3, 0.84e9), False),
                        ((1e-3, 0.82e9), True), ((1.25e-3, 1e9), False), ((1.4e-3, 1e9), True)):  # fmt: skip
        assert link_moved(planned, LinkRate(*rate)) == moved
        assert link_moved(LinkRate(*rate), planned) == moved


def test_all_pairs_of_a_few_servers_and_some_of_many() -> None:
    assert pairs_of([3, 1, 2]) == [(1, 2), (1, 3), (2, 3)]
    assert pairs_of([1]) == []
    assert len(pairs_of(range(MOST_WITH_ALL_PAIRS))) == 120
    for count in (MOST_WITH_ALL_PAIRS + 1, 64, 1000):
        pairs = pairs_of(range(count))
        assert len(pairs) <= count * count.bit_length()
        assert {server for pair in pairs for server in pair} == set(range(count))
        assert all(first < second for first, second in pairs)
    chosen = apart(pairs_of(range(64)), 8)
    assert len(chosen) == 8
    assert len({server for pair in chosen for server in pair}) == 16


def test_a_retired_generation_uses_no_link(servers: list[Server]) -> None:
    generation = spread_job(*servers)
    generation.assignments.update(
        state=AssignmentState.RELEASED, released_at=timezone.now() - timedelta(hours=1)
    )
    generation.state = GenerationState.RETIRED
    generation.save()
    assert measure_link(servers[0]).problem == ""
