"""Copies of a state in memory: their servers, their messages to agents, and starts from a peer's memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from cluster.choices import DrainState, ServerState
from cluster.models import Agent, Cluster, Gpu, Server
from scheduling.choices import GenerationState, RecoveryKind, RecoveryOutcome, RetireReason, StateSource
from scheduling.models import Generation, Recovery
from scheduling.selectors.agents.desired_state import desired_state
from scheduling.selectors.recovery.memory_points import PointsInMemory
from scheduling.selectors.recovery.memory_states import memory_state
from scheduling.services.agents.leases import fence_server
from scheduling.services.agents.recovering import advance_recoveries
from scheduling.services.generations.generations import create_generation, retire
from scheduling.services.generations.lifecycle import lose_generation
from scheduling.services.generations.protection import Stores
from tests.control_plane.agent_api import busy_server, event, send, training_job
from tests.control_plane.generations.test_memory_points import hold, holding, job_of

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]

LIMIT_BYTES = 1_000_000


def with_store(name: str, rack: str = "", limit_bytes: int = LIMIT_BYTES) -> Server:
    """Return a server whose agent reported the capacity of its store."""
    server = busy_server(name)
    Server.objects.filter(pk=server.pk).update(memory_store_bytes=limit_bytes, rack=rack)
    server.refresh_from_db()
    return server


@pytest.fixture
def servers() -> tuple[Server, ...]:
    return tuple(with_store(name) for name in ("node-a", "node-b", "node-c"))


def start(servers: tuple[Server, ...], of: Generation | None = None) -> Generation:
    """Start or resume a job with a rank on each of these servers."""
    if of is None:
        job, first = training_job(servers[0])
        first.assignments.all().delete()
        first.delete()
    else:
        job = job_of(of)
    gpus = [Gpu.objects.get(server=server, index=0) for server in servers]
    generation = create_generation(job, gpus, epoch=1, reason="test")
    assert isinstance(generation, Generation)
    generation.state = GenerationState.LIVE
    generation.live_at = timezone.now()
    generation.save()
    return generation


def group(server: Server, generation: Generation) -> dict[str, Any]:
    """Return the desired state of a server's store for a generation."""
    groups = [
        group_state
        for group_state in desired_state(server.pk)["memory"]["groups"]
        if (group_state["job"], group_state["generation"]) == (generation.job_id, generation.number)
    ]
    return groups[0] if groups else {}


def lose(server: Server) -> None:
    """Keep the server silent until it is given up."""
    agent = Agent.objects.get(server=server)
    Agent.objects.filter(pk=agent.pk).update(last_report_at=timezone.now() - timedelta(days=1))
    fence_server(agent, Cluster.objects.get(pk=server.cluster_id))
    server.refresh_from_db()
    assert server.state == ServerState.DOWN


def test_agent_reports_the_capacity_of_its_store() -> None:
    server = busy_server("node-a")
    assert not server.store_port
    send(server, {"inventory": {"gpus": [], "memory_store_bytes": LIMIT_BYTES}})
    server.refresh_from_db()
    assert (server.memory_store_bytes, server.store_port) == (LIMIT_BYTES, server.port_last)


def test_servers_of_a_job_keep_each_others_shards(servers: tuple[Server, ...]) -> None:
    before = {server.pk: server.desired_version for server in servers}
    generation = start(servers[:2])
    assert (generation.protection["replicas"], generation.protection["reason"]) == (2, "")
    first, second = (group(server, generation) for server in servers[:2])
    assert (first["keep"], second["keep"]) == ([1], [0])
    where = {"server": servers[1].name, "address": servers[1].address, "port": servers[1].port_last}
    assert first["send"] == [{"rank": 0, "peers": [where]}]
    assert [entry["rank"] for entry in second["send"]] == [1]
    assert first["secret"] == second["secret"] == generation.store_secret
    assert len(generation.store_secret) == 64
    assert group(servers[2], generation) == {}
    assert desired_state(servers[2].pk)["memory"]["port"] == servers[2].port_last
    woken = Server.objects.get(pk=servers[1].pk)
    assert woken.desired_version > before[servers[1].pk]


def test_workers_do_not_receive_the_store_secret(servers: tuple[Server, ...]) -> None:
    generation = start(servers[:2])
    state = desired_state(servers[0].pk)
    assert generation.store_secret not in str(state["generations"])


def test_copy_of_a_one_server_job_is_kept_in_another_rack() -> None:
    home, beside = with_store("node-a", "rack-1"), with_store("node-b", "rack-1")
    far = with_store("node-c", "rack-2")
    before = far.desired_version
    generation = start((home,))
    assert generation.protection["holders"] == [[home.pk, far.pk]]
    assert group(far, generation)["keep"] == [0]
    assert group(beside, generation) == {}
    far.refresh_from_db()
    assert far.desired_version > before, "its agent is woken"


def test_copies_lie_in_another_power_domain_too() -> None:
    home, beside, far = (with_store(name, "rack-1") for name in ("node-a", "node-b", "node-c"))
    Server.objects.filter(pk__in=[home.pk, beside.pk]).update(power_domain="feed-a")
    Server.objects.filter(pk=far.pk).update(power_domain="feed-b")
    assert start((home,)).protection["holders"] == [[home.pk, far.pk]]
    four = [with_store(f"node-{number}") for number in range(4)]
    for number, server in enumerate(four):
        Server.objects.filter(pk=server.pk).update(power_domain=f"feed-{number // 2}")
    stores = Stores([home.cluster_id])
    granted = stores.grant("wide", [server.pk for server in four], 1_000)
    feeds = {server.pk: number // 2 for number, server in enumerate(four)}
    assert granted["fatal_domains"] == []
    assert all(feeds[holder] != feeds[other] for holder, other in granted["holders"])


@pytest.mark.parametrize(
    ("accepted", "a_day", "replicas"), [(0.0, 0.015, 2), (0.01, 0.015, 2), (1e-6, 0.015, 3), (0.9, 0.015, 1)]
)
def test_number_of_copies_follows_from_the_operators_target(
    servers: tuple[Server, ...], accepted: float, a_day: float, replicas: int
) -> None:
    """The job runs on two servers; third copies lie on a third server."""
    Cluster.objects.update(
        accepted_fallbacks_a_month=accepted, failures_per_server_day=a_day, fence_seconds=60.0,
        replacement_seconds=360.0,
    )  # fmt: skip
    granted = Stores([servers[0].cluster_id]).grant("job", [servers[0].pk, servers[1].pk], 1_000)
    assert (granted["wanted"], granted["replicas"], granted["reason"]) == (replicas, replicas, "")
    assert all(len(holders) == replicas for holders in granted["holders"])
    assert {holders[0] for holders in granted["holders"]} == {servers[0].pk, servers[1].pk}


def test_a_lax_target_removes_no_copy_that_a_promise_needs(servers: tuple[Server, ...]) -> None:
    Cluster.objects.update(accepted_fallbacks_a_month=0.9)
    pks = [servers[0].pk, servers[1].pk]
    assert Stores([servers[0].cluster_id]).grant("job", pks, 1_000, promised=2)["replicas"] == 2


def test_unreachable_copy_target_is_reported(servers: tuple[Server, ...]) -> None:
    Cluster.objects.update(accepted_fallbacks_a_month=1e-4, failures_per_rack_day=1.0)
    Server.objects.update(rack="the only one")
    granted = Stores([servers[0].cluster_id]).grant("job", [servers[0].pk], 1_000)
    assert "a month sees a fall-back to durable storage" in granted["reason"]
    assert granted["fatal_domains"] == ["rack the only one"]


def test_standby_server_keeps_copies_and_a_draining_one_does_not() -> None:
    """A lost server's jobs then resume from the memory of the server that replaces it."""
    home, beside = with_store("node-a"), with_store("node-b")
    Server.objects.filter(pk=beside.pk).update(standby=True)
    assert start((home,)).protection["holders"] == [[home.pk, beside.pk]]
    Server.objects.filter(pk=beside.pk).update(drain=DrainState.DRAINING)
    assert Stores([home.cluster_id]).grant("another", [home.pk], 1_000)["replicas"] == 1


def test_without_a_second_server_one_copy_is_kept_with_the_reason() -> None:
    generation = start((with_store("node-a"),))
    assert generation.protection["replicas"] == 1
    assert "the job runs on one machine: one replica is kept" in generation.protection["reason"]


def test_copies_reserve_memory_before_a_job_stored_its_own_state(servers: tuple[Server, ...]) -> None:
    """Two jobs of one function: 2 slots of 2 shards of 200 kB each need 1.6 MB, and 1 MB is free."""
    earlier = job_of(start(servers[2:]))
    assert earlier.curve is not None
    earlier.curve.state_bytes = 400_000
    earlier.curve.save()
    granted = []
    for index in range(2):
        job, first = training_job(servers[0], index=index + 2)
        first.assignments.all().delete()
        first.delete()
        job.curve = earlier.curve
        job.save()
        gpus = [Gpu.objects.get(server=server, index=index) for server in servers[:2]]
        generation = create_generation(job, gpus, epoch=1, reason="test")
        assert isinstance(generation, Generation)
        granted.append(generation.protection)
    assert (granted[0]["replicas"], granted[0]["memory_bytes"][0][1]) == (2, 800_000)
    assert granted[1]["replicas"] == 0
    assert "has 0.0 GB of host memory free" in granted[1]["reason"]


def test_memory_is_never_granted_twice(servers: tuple[Server, ...]) -> None:
    # Each of two servers keeps 2 slots of 2 shards of 200 kB: 800 kB of its 1 MB.
    first = Stores([servers[0].cluster_id])
    granted = first.grant("one", [servers[0].pk, servers[1].pk], 400_000)
    assert granted["replicas"] == 2
    assert granted["memory_bytes"] == [[servers[0].pk, 800_000], [servers[1].pk, 800_000]]
    refused = first.grant("two", [servers[0].pk, servers[1].pk], 400_000)
    assert refused["replicas"] == 0
    assert "nothing is kept in memory" in refused["reason"]
    # A third server has room for the copy of a small job; the first two are full.
    small = first.grant("three", [servers[0].pk], 80_000)
    assert small["holders"] == [[servers[0].pk, servers[2].pk]]


def test_no_worker_gets_the_port_of_the_store(servers: tuple[Server, ...]) -> None:
    Server.objects.filter(pk=servers[0].pk).update(port_first=30_000, port_last=30_002, port_next=30_002)
    generation = start(servers[:1])
    ports = {generation.master_port, *generation.assignments.values_list("handover_port", flat=True)}
    assert ports == {30_000, 30_001}


def test_job_of_a_lost_server_resumes_from_peer_memory(
    servers: tuple[Server, ...],
) -> None:
    generation = start(servers[:2])
    hold(servers[0], holding(generation, 0, 41), holding(generation, 1, 41))
    assert hold(servers[1], holding(generation, 1, 42), holding(generation, 0, 41)) == []
    lose(servers[0])
    # One rank runs on the server that holds the state, the other on a server without it.
    again = start((servers[2], servers[1]), of=generation)
    assert again.start is not None
    named = (again.start["from"], again.start["generation"], again.start["iteration"])
    assert named == ("memory", generation.number, 41)
    shards = again.start["shards"]
    assert [[holder["server"] for holder in shard["holders"]] for shard in shards] == [[servers[1].pk]] * 2
    assert all(shard["reader"] == 1 for shard in shards), "a shard on the rank's own server is not sent"


def test_server_without_a_copy_receives_peers_to_fetch_from(servers: tuple[Server, ...]) -> None:
    generation = start(servers[:2])
    hold(servers[1], holding(generation, 1, 42), holding(generation, 0, 41))
    lose(servers[0])
    again = start((servers[2],), of=generation)
    assert again.start is not None
    assert again.start["from"] == "memory"
    state = group(servers[2], generation)
    where = {"server": servers[1].name, "address": servers[1].address, "port": servers[1].port_last}
    assert state["fetch"] == [{"rank": rank, "peers": [where]} for rank in range(2)]
    assert state["secret"] == generation.store_secret
    # The server may report the shards that it fetched, but not those of another generation.
    assert hold(servers[2], holding(generation, 0, 41), holding(again, 0, 43)) == []
    assert hold(servers[0], holding(again, 0, 43))[0]["reason"].endswith("was not given to this server")


def test_holder_reports_only_the_ranks_that_it_keeps(servers: tuple[Server, ...]) -> None:
    generation = start(servers)
    keeps = {
        rank for rank, holders in enumerate(generation.protection["holders"]) if servers[0].pk in holders
    }
    assert len(keeps) == 2
    refused = hold(servers[0], *(holding(generation, rank, 41) for rank in range(3)))
    assert [item["index"] for item in refused] == [rank for rank in range(3) if rank not in keeps]
    assert len(hold(servers[0], holding(generation, 3, 41))) == 1


def test_a_job_whose_copy_is_lost_gets_another_one_while_it_trains_on(servers: tuple[Server, ...]) -> None:
    generation = start(servers[:1])
    for peers_left in (1, 0):
        ((own, holder),) = generation.protection["holders"]
        before = Server.objects.get(pk=own).desired_version
        lose(Server.objects.get(pk=holder))
        generation.refresh_from_db()
        assert generation.state == GenerationState.LIVE
        (transfer,) = group(servers[0], generation)["send"]
        assert len(transfer["peers"]) == peers_left
        if peers_left:
            assert group(Server.objects.get(name=transfer["peers"][0]["server"]), generation)["keep"] == [0]
        assert Server.objects.get(pk=own).desired_version > before, "its agent is woken"
    assert "the job runs on one machine" in generation.protection["reason"]


def test_a_server_that_is_being_emptied_keeps_no_copies_for_others(servers: tuple[Server, ...]) -> None:
    Server.objects.filter(pk=servers[1].pk).update(drain=DrainState.DRAINING)
    Server.objects.filter(pk=servers[2].pk).update(available_until=timezone.now() + timedelta(days=1))
    assert start(servers[:1]).protection["replicas"] == 1


def test_a_retired_generation_sends_no_copies(servers: tuple[Server, ...]) -> None:
    generation = start(servers[:2])
    retire(generation, RetireReason.LOST, "test")
    assert group(servers[0], generation) == {}


def test_start_aborted_by_a_lost_server_is_retried_a_failed_one_not(
    servers: tuple[Server, ...],
) -> None:
    generation = start(servers[:2])
    hold(servers[1], holding(generation, 1, 42), holding(generation, 0, 41))
    lose(servers[0])
    cluster = Cluster.objects.get(pk=servers[0].cluster_id)
    for _ in range(2):
        again = start((servers[2],), of=generation)
        Generation.objects.filter(pk=again.pk).update(live_at=None, state=GenerationState.HANDOVER)
        again.refresh_from_db()
        lose_generation(job_of(again), again, "a server died", cluster)
        again.refresh_from_db()
        assert again.state == GenerationState.RETIRED
        assert PointsInMemory([job_of(generation)]).newest(job_of(generation), []) is not None
    third = start((servers[2],), of=generation)
    Generation.objects.filter(pk=third.pk).update(live_at=None, state=GenerationState.HANDOVER)
    wrong = event(third, "failed", rank=0, reason="start_failed", message="not there", traceback="")
    send(servers[2], {"events": [wrong]})
    assert PointsInMemory([job_of(generation)]).newest(job_of(generation), []) is None


def test_state_of_an_agent_without_store_is_read_on_its_server(servers: tuple[Server, ...]) -> None:
    Server.objects.filter(pk=servers[0].pk).update(memory_store_bytes=0)
    generation = start(servers[:1])
    assert generation.protection == {}
    hold(servers[0], holding(generation, 0, 41))
    points = PointsInMemory([job_of(generation)])
    assert points.newest(job_of(generation), [servers[0].pk]) is not None
    assert points.newest(job_of(generation), [servers[1].pk]) is None


def test_reason_for_fewer_copies_is_shown(servers: tuple[Server, ...]) -> None:
    generation = start(servers[:2])
    problem = "server node-b keeps no copy: it takes too long"
    report = {"used_bytes": 0, "limit_bytes": LIMIT_BYTES, "holdings": [], "problem": problem}
    send(servers[0], {"memory_store": report})
    state = memory_state(job_of(generation))
    assert state is not None
    assert state.reason == problem
    alone = start((with_store("node-z", limit_bytes=1),))
    alone.protection["reason"] = "there is no room"
    alone.save()
    state = memory_state(job_of(alone))
    assert state is not None
    assert state.reason == "there is no room"


def test_recovery_from_peer_memory_is_recorded_as_such(servers: tuple[Server, ...]) -> None:
    generation = start(servers[:2])
    hold(servers[1], holding(generation, 1, 42), holding(generation, 0, 41))
    lose(servers[0])
    again = start((servers[2],), of=generation)
    Generation.objects.filter(pk=again.pk).update(start_iteration=41)
    advance_recoveries(Cluster.objects.get(pk=servers[0].cluster_id))
    recovery = Recovery.objects.get(job=generation.job_id)
    assert (recovery.kind, recovery.outcome) == (RecoveryKind.HARDWARE, RecoveryOutcome.RECOVERED)
    assert (recovery.source, recovery.iteration_resumed) == (StateSource.PEER_MEMORY, 41)
    assert recovery.sources[0]["holders"] == [servers[1].pk]
