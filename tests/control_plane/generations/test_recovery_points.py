"""States in shards: only complete states are used, and each rank receives the shards to read and their
holders."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from cluster.models import Gpu, Server
from scheduling.api.job_serializers import GenerationSerializer
from scheduling.choices import Purpose, RetireReason
from scheduling.models import Checkpoint, Generation, Job, JobEvent, StateShard
from scheduling.selectors.agents.desired_state import desired_state
from scheduling.selectors.recovery.state_sources import sources_of
from scheduling.services.generations.generations import (
    begin_handover,
    begin_training,
    create_generation,
    retire,
)
from scheduling.services.generations.recovery_points import start_from_predecessor
from scheduling.services.long_work.housekeeping import delete_old_checkpoints
from tests.control_plane.agent_api import busy_server, event, send, training_job
from tests.control_plane.simulated_time import SimulatedTime
from tests.factories import GenerationFactory

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]


@pytest.fixture
def servers() -> tuple[Server, Server]:
    return busy_server("node-a"), busy_server("node-b")


@pytest.fixture
def pair(servers: tuple[Server, Server]) -> Generation:
    """Return a generation with rank 0 on one server and rank 1 on the other."""
    job, first = training_job(servers[0])
    first.assignments.all().delete()
    first.delete()
    gpus = [Gpu.objects.get(server=server, index=0) for server in servers]
    generation: Generation = GenerationFactory.create(
        job=job, master_server=servers[0], gpus=gpus, world_size=2, held_at=timezone.now()
    )
    return generation


def shard(generation: Generation, rank: int, **fields: Any) -> dict[str, Any]:
    return event(generation, "shard_stored", rank=rank, sha256=f"{rank}" * 64, **fields)


def job_of(generation: Generation) -> Job:
    return Job.objects.select_related("checkpoint").get(pk=generation.job_id)


def test_a_state_is_used_once_every_rank_has_stored_its_shard(
    servers: tuple[Server, Server], pair: Generation
) -> None:
    send(servers[0], {"events": [shard(pair, 0)]})
    assert job_of(pair).checkpoint is None
    send(servers[1], {"events": [shard(pair, 1)]})
    point = job_of(pair).checkpoint
    assert point is not None
    assert (point.iteration, point.world_size, point.size_bytes) == (9, 2, 18)


def test_an_incomplete_state_does_not_replace_the_previous_one(
    servers: tuple[Server, Server], pair: Generation
) -> None:
    for rank, server in enumerate(servers):
        send(server, {"events": [shard(pair, rank)]})
    send(servers[0], {"events": [shard(pair, 0, iteration=20)]})
    point = job_of(pair).checkpoint
    assert point is not None
    assert point.iteration == 9


def test_the_same_shard_twice_does_not_complete_a_state(
    servers: tuple[Server, Server], pair: Generation
) -> None:
    send(servers[0], {"events": [shard(pair, 0)]})
    send(servers[0], {"events": [shard(pair, 0, bytes=10)]})
    assert job_of(pair).checkpoint is None
    assert StateShard.objects.get().size_bytes == 10


@pytest.mark.parametrize("rank", [1, 2, 2**31 - 1])
def test_a_shard_of_a_rank_that_the_sender_does_not_run_is_refused(
    servers: tuple[Server, Server], pair: Generation, rank: int
) -> None:
    answer = send(servers[0], {"events": [shard(pair, rank)]}).json()
    assert len(answer["refused"]) == 1
    assert not Checkpoint.objects.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"sha256": "abc"},
        {"sha256": None},
        {"bytes": -1},
        {"bytes": 2**60},
        {"iteration": -1},
        {"reason": "so"},
    ],
)
def test_a_shard_with_a_field_out_of_bounds_is_refused(
    servers: tuple[Server, Server], pair: Generation, fields: dict[str, Any]
) -> None:
    stored = {**shard(pair, 0), **fields}
    assert len(send(servers[0], {"events": [stored]}).json()["refused"]) == 1
    assert not Checkpoint.objects.exists()


def test_start_names_reader_digest_and_holders_of_each_shard(
    servers: tuple[Server, Server], pair: Generation
) -> None:
    for rank, server in enumerate(servers):
        send(server, {"events": [shard(pair, rank)]})
    begin_training(pair, job_of(pair))
    start = pair.start
    assert start is not None
    assert (start["from"], start["generation"], start["iteration"], start["world_size"]) == (
        "checkpoint", pair.number, 9, 2,
    )  # fmt: skip
    assert [(entry["id"], entry["reader"], entry["sha256"]) for entry in start["shards"]] == [
        (0, 0, "0" * 64), (1, 1, "1" * 64),
    ]  # fmt: skip
    for entry in start["shards"]:
        (holder,) = entry["holders"]
        assert holder["tier"] == "store"
        assert holder["uri"].endswith(f"jobs/{pair.job_id}/checkpoints/1-9/{entry['id']}.pt")


@pytest.mark.parametrize(
    ("places", "readers"),
    [
        ([0], [0, 0]),
        ([0, 1], [0, 1]),
        # The ranks are swapped between the servers: each reads the shard on its own server.
        ([1, 0], [1, 0]),
        ([1, 1, 0], [2, 0]),
    ],
)
def test_handover_shards_are_read_where_their_ranks_were(
    servers: tuple[Server, Server], pair: Generation, places: list[int], readers: list[int]
) -> None:
    server_ids = [servers[place].pk for place in places]
    start = start_from_predecessor(pair, server_ids)
    assert [(entry["id"], entry["reader"]) for entry in start["shards"]] == list(enumerate(readers))
    sources = {entry["rank"]: entry["source"] for entry in sources_of(start, server_ids)}
    on_one_server = len(set(places)) < 2
    assert sources[readers[0]] == ("peer_memory" if on_one_server else "own_memory")
    ports = [entry["holders"][0]["port"] for entry in start["shards"]]
    assert ports == [member.handover_port for member in pair.assignments.order_by("rank")]


def test_handover_pause_is_reported_by_part_and_state_source(
    servers: tuple[Server, Server], pair: Generation
) -> None:
    gpus = [Gpu.objects.get(server=servers[0], index=index) for index in (1, 2)]
    generation = create_generation(job_of(pair), gpus, epoch=1, reason="test")
    assert isinstance(generation, Generation)
    begin_handover(generation, pair, generation.job.cluster)
    first = event(generation, "first_iteration", iteration=6, pause_seconds=0.9, waiting_seconds=0.1)
    Generation.objects.filter(pk=generation.pk).update(created_at=timezone.now() - timedelta(seconds=5))
    send(servers[0], {"events": [{**first, "loading_seconds": 99.0}]})
    generation.refresh_from_db()
    assert (generation.pause_seconds, generation.waiting_seconds) == (0.9, 0.1)
    assert generation.loading_seconds == pytest.approx(0.8)
    message = JobEvent.objects.get(job=generation.job, kind="state_taken").message
    assert "Restarted in 0.9 s: 0.1 s until its state was there" in message
    assert "Of 2 shards: 1 in the memory of the server that read it, 1 from the memory of another" in message
    retire(generation, RetireReason.LET_GO, "test")
    send(servers[0], {"events": [{**first, "id": str(uuid4())}]})
    assert JobEvent.objects.filter(job=generation.job, kind="state_taken").count() == 1, (
        "a retired generation's report is ignored"
    )
    assert GenerationSerializer(generation).data["state_from"] == [
        {"source": "own_memory", "shards": 1}, {"source": "peer_memory", "shards": 1},
    ]  # fmt: skip


@pytest.mark.parametrize("purpose", [Purpose.TRAINING, Purpose.PROFILING])
def test_every_rank_has_a_port_of_its_own_on_its_server(
    servers: tuple[Server, Server], pair: Generation, purpose: Purpose
) -> None:
    gpus = [Gpu.objects.get(server=server, index=index) for server in servers for index in (1, 2)]
    generation = create_generation(job_of(pair), gpus, epoch=1, reason="test", purpose=purpose)
    assert isinstance(generation, Generation)
    ports: dict[str, list[int | None]] = {}
    for server in servers:
        (entry,) = [
            entry
            for entry in desired_state(server.pk)["generations"]
            if entry["generation"] == generation.number and entry["purpose"] == purpose
        ]
        ports[server.name] = [member["handover_port"] for member in entry["workers"]]
        assert len(ports[server.name]) == 2
    if purpose == Purpose.PROFILING:
        assert set(sum(ports.values(), [])) == {None}
        return
    for server in servers:
        own_ports = ports[server.name]
        assert len(set(own_ports)) == 2
        assert all(server.port_first <= (port or 0) <= server.port_last for port in own_ports)
    assert generation.master_port not in ports[servers[0].name]


def test_shards_of_incomplete_states_are_deleted_with_their_folder(
    servers: tuple[Server, Server], pair: Generation, settings: Any, tmp_path: Path, clock: SimulatedTime
) -> None:
    settings.CHECKPOINT_URL = tmp_path.as_uri()
    for iteration in (1, 2, 3, 4):
        clock.turn(1.0)
        folder = tmp_path / f"jobs/{pair.job_id}/checkpoints/1-{iteration}"
        folder.mkdir(parents=True)
        (folder / "0.pt").write_bytes(b"x")
        send(servers[0], {"events": [shard(pair, 0, iteration=iteration)]})
    delete_old_checkpoints(timezone.now())
    remaining = {path.name for path in (tmp_path / f"jobs/{pair.job_id}/checkpoints").iterdir()}
    assert remaining == {"1-3", "1-4"}
    assert Checkpoint.objects.filter(deleted_at__isnull=True).count() == 2
