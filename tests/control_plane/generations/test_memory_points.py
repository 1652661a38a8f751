"""Recovery points in the memory of servers: agents' reports, and starts from these points."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cluster.models import Agent, Cluster, Gpu, Server
from scheduling.choices import GenerationState, JobState, RetireReason
from scheduling.life_cycle.instructions import Fail
from scheduling.models import Checkpoint, Generation, Job, JobEvent
from scheduling.selectors.agents.desired_state import desired_state
from scheduling.selectors.recovery.memory_points import SPARE_FOR
from scheduling.services.agents.leases import fence_server
from scheduling.services.generations.generations import create_generation, retire
from scheduling.services.generations.lifecycle import became_live, fail_all
from tests.control_plane.agent_api import busy_server, event, send, training_job
from tests.factories import GenerationFactory

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]


@pytest.fixture
def servers() -> tuple[Server, Server]:
    return busy_server("node-a"), busy_server("node-b")


@pytest.fixture
def pair(servers: tuple[Server, Server]) -> Generation:
    """Return a generation that trains with rank 0 on one server and rank 1 on the other."""
    job, first = training_job(servers[0])
    first.assignments.all().delete()
    first.delete()
    generation: Generation = GenerationFactory.create(
        job=job,
        master_server=servers[0],
        gpus=[Gpu.objects.get(server=server, index=0) for server in servers],
        world_size=2,
        held_at=timezone.now(),
    )
    return generation


def holding(generation: Generation, rank: int, iteration: int, **changes: Any) -> dict[str, Any]:
    return {
        "job": generation.job_id,
        "generation": generation.number,
        "rank": rank,
        "iteration": iteration,
        "bytes": 1000,
        "reserved_bytes": 2000,
        "age_seconds": 0.5,
        **changes,
    }


def hold(server: Server, *holdings: Any) -> list[dict[str, Any]]:
    """Report what the server's store holds; return the refused items."""
    store = {"used_bytes": 2000, "limit_bytes": 10_000, "holdings": list(holdings)}
    answer = send(server, {"memory_store": store})
    assert answer.status_code == 200
    refused: list[dict[str, Any]] = answer.json()["refused"]
    return refused


def job_of(generation: Generation) -> Job:
    return Job.objects.select_related("checkpoint").get(pk=generation.job_id)


def fail(servers: tuple[Server, Server], generation: Generation) -> None:
    """Kill one of the generation's workers."""
    killed = event(generation, "failed", rank=1, reason="killed", message="signal 9", traceback="")
    send(servers[1], {"events": [killed]})
    generation.refresh_from_db()
    assert generation.state == GenerationState.RETIRED
    assert job_of(generation).state == JobState.SUSPENDED


def restart(generation: Generation, servers: tuple[Server, ...]) -> Generation:
    """Give the job one GPU of each of these servers, as the planner does."""
    gpus = [Gpu.objects.get(server=server, index=0) for server in servers]
    successor = create_generation(job_of(generation), gpus, epoch=1, reason="test")
    assert isinstance(successor, Generation)
    return successor


def test_after_a_failure_each_rank_reads_what_its_own_server_holds(
    servers: tuple[Server, Server], pair: Generation
) -> None:
    hold(servers[0], holding(pair, 0, 41))
    hold(servers[1], holding(pair, 1, 40))
    fail(servers, pair)
    # The servers are swapped: rank 0 is now on node-b and reads the shard there.
    again = restart(pair, servers[::-1])
    assert again.start is not None
    assert (again.start["from"], again.start["generation"], again.start["iteration"]) == ("memory", 1, 40)
    assert [(item["id"], item["reader"], item["holders"][0]["server"]) for item in again.start["shards"]] == [
        (0, 1, servers[0].pk), (1, 0, servers[1].pk),
    ]  # fmt: skip
    recovering = JobEvent.objects.get(job=again.job_id, kind="recovering")
    assert "generation 1 left iteration 40 or a later one" in recovering.message
    # Stores may have advanced after the last report: the first iteration shows where the job really resumed.
    became_live(job_of(pair), again, 43, Cluster.objects.get(pk=again.job.cluster_id))
    again.refresh_from_db()
    assert (again.start_iteration, job_of(pair).iterations_done) == (42, 43)


def test_fewer_workers_read_from_memory_where_every_holder_has_one(servers: tuple[Server, Server]) -> None:
    job, first = training_job(servers[0])
    first.assignments.all().delete()
    first.delete()
    gpus = [Gpu.objects.get(server=servers[0], index=index) for index in range(4)]
    four = GenerationFactory.create(
        job=job, master_server=servers[0], gpus=gpus, world_size=4, held_at=timezone.now()
    )
    hold(servers[0], *(holding(four, rank, 40) for rank in range(4)))
    killed = event(four, "failed", rank=1, reason="killed", message="signal 9", traceback="")
    send(servers[0], {"events": [killed]})
    two = create_generation(job_of(four), gpus[:2], epoch=1, reason="test")
    assert isinstance(two, Generation)
    assert two.start is not None
    assert [shard["reader"] for shard in two.start["shards"]] == [0, 1, 0, 1]


@pytest.mark.parametrize("why", ["a shard is missing", "a holder is not used", "a holder is fenced"])
def test_incomplete_memory_point_is_not_used(
    servers: tuple[Server, Server], pair: Generation, why: str
) -> None:
    hold(servers[0], holding(pair, 0, 41))
    if why != "a shard is missing":
        hold(servers[1], holding(pair, 1, 41))
    fail(servers, pair)
    if why == "a holder is fenced":
        agent = Agent.objects.get(server=servers[1])
        long_ago = timezone.now() - timedelta(days=1)
        Agent.objects.filter(pk=agent.pk).update(last_report_at=long_ago)
        fence_server(agent, Cluster.objects.get(pk=servers[1].cluster_id))
    again = restart(pair, servers[:1] if why == "a holder is not used" else servers)
    assert again.start == {"from": "nothing"}


def test_a_durable_state_that_is_newer_is_taken(servers: tuple[Server, Server], pair: Generation) -> None:
    for rank, server in enumerate(servers):
        stored = event(pair, "shard_stored", rank=rank, iteration=42, sha256="0" * 64)
        send(server, {"events": [stored]})
        hold(server, holding(pair, rank, 41))
    fail(servers, pair)
    again = restart(pair, servers)
    assert again.start is not None
    assert again.start["from"] == "checkpoint"
    assert all(desired_state(server.pk)["remembered"] == [] for server in servers)


def test_suspended_job_resumes_from_memory_that_is_still_spare(
    servers: tuple[Server, Server], pair: Generation
) -> None:
    for rank, server in enumerate(servers):
        stored = event(pair, "shard_stored", rank=rank, iteration=41, reason="suspend", sha256="0" * 64)
        # The store's last report is older than its content.
        hold(server, holding(pair, rank, 40))
        send(server, {"events": [stored]})
    retire(pair, RetireReason.SUSPENDED, "suspended")
    Job.objects.filter(pk=pair.job_id).update(state=JobState.SUSPENDED)
    for server in servers:
        desired = desired_state(server.pk)
        assert (desired["remembered"], desired["spare"]) == ([], [pair.job_id])
    for rank, server in enumerate(servers):
        hold(server, holding(pair, rank, 41))
    again = restart(pair, servers)
    assert again.start is not None
    assert (again.start["from"], again.start["generation"], again.start["iteration"]) == ("memory", 1, 41)
    # While the job reads its state from memory, that memory is not spare.
    assert all(desired_state(server.pk)["spare"] == [] for server in servers)
    retire(again, RetireReason.LET_GO, "test")
    Checkpoint.objects.update(stored_at=timezone.now() - SPARE_FOR - timedelta(seconds=1))
    assert all(desired_state(server.pk)["spare"] == [] for server in servers), (
        "memory is spare for a limited time"
    )


def test_unreadable_memory_point_is_not_tried_again(servers: tuple[Server, Server], pair: Generation) -> None:
    for rank, server in enumerate(servers):
        hold(server, holding(pair, rank, 41))
    fail(servers, pair)
    again = restart(pair, servers)
    wrong = event(again, "failed", rank=1, reason="start_failed", message="not there", traceback="")
    send(servers[1], {"events": [wrong]})
    third = restart(pair, servers)
    assert third.start == {"from": "nothing"}


def test_a_job_is_remembered_until_it_ends(servers: tuple[Server, Server], pair: Generation) -> None:
    for rank, server in enumerate(servers):
        hold(server, holding(pair, rank, 41))
    assert desired_state(servers[0].pk)["remembered"] == [pair.job_id]
    fail_all(
        [(job_of(pair), Fail("function_error", "it ends"))], Cluster.objects.get(pk=servers[0].cluster_id)
    )
    assert desired_state(servers[0].pk)["remembered"] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 1},
        {"generation": 7},
        {"job": "other"},
        {"iteration": 10_000_000},
        {"iteration": -1},
        {"bytes": "many"},
        {"age_seconds": float("1e300")},
    ],
)
def test_holdings_of_other_jobs_or_beyond_bounds_are_refused(
    servers: tuple[Server, Server], pair: Generation, changes: dict[str, Any]
) -> None:
    refused = hold(servers[0], {**holding(pair, 0, 41), **changes}, holding(pair, 0, 40))
    assert [item["part"] for item in refused] == ["memory_store"]
    (stored,) = Agent.objects.get(server=servers[0]).memory_store["holdings"]
    assert stored["iteration"] == 40


def test_refused_holdings_after_a_fence_are_noted_in_one_line(
    servers: tuple[Server, Server], pair: Generation
) -> None:
    """The store still has copies that are now assigned to other holders; each report lists them all."""
    for iteration in range(41, 46):
        refused = hold(servers[0], *(holding(pair, rank, iteration) for rank in range(1, 8)))
        assert len(refused) == 7
    refusal = job_of(pair).events.get(kind="report_refused")
    assert "(memory_store: rank 1 of generation 1 of this job was not given to this server" in refusal.message
    assert refusal.message.endswith(" and 6 more).")


def test_an_unchanged_store_report_is_not_written_again(servers: tuple[Server, Server]) -> None:
    hold(servers[0])
    with CaptureQueriesContext(connection) as captured:
        hold(servers[0])
    assert [query["sql"] for query in captured if 'SET "memory_store"' in query["sql"]] == []


@pytest.mark.parametrize(
    "store", [[], {"used_bytes": 1}, "much", {"used_bytes": 0, "limit_bytes": 0, "holdings": 1}]
)
def test_a_malformed_store_report_is_refused_alone(
    servers: tuple[Server, Server], pair: Generation, store: Any
) -> None:
    answer = send(servers[0], {"memory_store": store})
    assert answer.status_code == 200
    assert [item["part"] for item in answer.json()["refused"]] == ["memory_store"]
    assert Agent.objects.get(server=servers[0]).memory_store == {}
