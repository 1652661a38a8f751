"""A job's recoveries and recovery points in the API, the SDK's types and the monitoring system."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cluster.models import Agent
from punctual.client.models import Recovery as ClientsRecovery
from punctual.client.reading import read
from scheduling.models import Job, JobProtection, Recovery
from tests.api.conftest import World
from tests.control_plane.agent_api import EVENT_FIELDS
from tests.factories import CheckpointFactory


@pytest.fixture
def recovery(world: World) -> Recovery:
    """Return a recovery: a server was lost ten seconds before training resumed three iterations back."""
    now = timezone.now()
    created: Recovery = Recovery.objects.create(
        job=world.job,
        failed_generation=1,
        recovering_generation=2,
        kind="hardware",
        outcome="recovered",
        phase="running",
        reason="server node-a fell silent",
        lost_servers=[
            {
                "server": world.server.pk,
                "name": "node-a",
                "silent_at": (now - timedelta(seconds=10)).isoformat(),
                "fenced_at": (now - timedelta(seconds=4)).isoformat(),
            }
        ],
        lost_ranks=[0, 1],
        sources=[
            {"rank": 0, "server": world.server.pk, "source": "peer_memory", "holders": [world.server.pk]}
        ],
        source="peer_memory",
        iteration_reached=53,
        iteration_resumed=50,
        iterations_per_second=2.0,
        detected_at=now - timedelta(seconds=10),
        frozen_at=now - timedelta(seconds=4),
        resourced_at=now - timedelta(seconds=3),
        sources_chosen_at=now - timedelta(seconds=3),
        starting_at=now - timedelta(seconds=3),
        loading_at=now - timedelta(seconds=3),
        verified_at=now - timedelta(seconds=1),
        running_at=now,
        ended_at=now,
        fenced_at=now - timedelta(seconds=4),
    )
    return created


def test_recovery_is_listed_by_phase_with_server_names(world: World, recovery: Recovery) -> None:
    answer = world.client(world.viewer).get(f"/api/v1/jobs/{world.job.pk}/recoveries/").json()
    (shown,) = answer["results"]
    assert [(phase["phase"], phase["seconds"]) for phase in shown["phases"]] == [
        ("detected", 6.0), ("frozen", 1.0), ("resourced", 0.0), ("sources_chosen", 0.0),
        ("starting", 0.0), ("loading", 2.0),
        ("verified", 1.0),
    ]  # fmt: skip
    assert (shown["iterations_lost"], shown["lost_work_seconds"], shown["down_seconds"]) == (3, 1.5, 10.0)
    assert shown["sources"] == [
        {"rank": 0, "server": "node-a", "source": "peer_memory", "holders": ["node-a"]}
    ]
    assert set(shown["lost_servers"][0]) == {"name", "silent_at", "fenced_at"}
    known = read(ClientsRecovery, shown)
    assert (known.kind, known.down_seconds, known.running_at) == ("hardware", 10.0, recovery.running_at)


def test_recoveries_come_in_pages_newest_first(world: World) -> None:
    now = timezone.now()
    for number in range(1, 6):
        Recovery.objects.create(job=world.job, failed_generation=number, outcome="recovered", ended_at=now)
    client = world.client(world.owner)
    first = client.get(f"/api/v1/jobs/{world.job.pk}/recoveries/?page_size=2").json()
    assert [row["failed_generation"] for row in first["results"]] == [5, 4]
    second = client.get(first["next"]).json()
    assert [row["failed_generation"] for row in second["results"]] == [3, 2]


def test_memory_point_shows_newest_states_and_cost_of_a_lost_server(world: World) -> None:
    Job.objects.filter(pk=world.job.pk).update(
        iterations_done=53,
        iterations_per_second=2.0,
        checkpoint=CheckpointFactory.create(job=world.job, iteration=41),
    )
    completed = (timezone.now() - timedelta(seconds=3)).isoformat()
    holdings = [
        {"job": world.job.pk, "generation": 1, "rank": rank, "iteration": 52 + rank, "bytes": 10,
         "completed_at": completed}
        for rank in (0, 1)
    ]  # fmt: skip
    Agent.objects.filter(server=world.server).update(memory_store={"holdings": holdings})
    point = world.client(world.viewer).get(f"/api/v1/jobs/{world.job.pk}/memory-point/").json()
    assert point["copies"] is None, "nothing is planned yet"
    assert (point["memory"]["iteration"], point["durable"]["iteration"]) == (52, 41)
    assert point["memory"]["age_seconds"] >= 3.0
    assert (point["protection"], point["committed_lag"]) == ("degraded", 1)
    assert point["holders"] == [{"server": "node-a", "ranks": [0, 1], "bytes": 20, "iteration": 52}]
    assert point["if_lost"] == [{"server": "node-a", "iterations": 12, "seconds": 6.0, "source": "durable"}]


def test_how_copies_are_sent_and_what_they_are_measured_to_cost(world: World) -> None:
    planned = {
        "every": 2, "iterations": 2, "spans": 3, "bytes": 1_000, "iteration_seconds": 0.4,
        "idle_seconds": 0.3, "copy_seconds": 0.35, "extension_seconds": 0.0, "write_seconds": 0.01,
        "with_seconds": 0.42, "without_seconds": 0.4,
    }  # fmt: skip
    world.job.generations.update(copy_traffic=planned)
    copies = world.client(world.viewer).get(f"/api/v1/jobs/{world.job.pk}/memory-point/").json()["copies"]
    assert copies.pop("measured_cost") == pytest.approx(0.05)
    assert copies == {name: planned[name] for name in copies}
    world.job.generations.update(copy_traffic=planned | {"with_seconds": None})
    copies = world.client(world.viewer).get(f"/api/v1/jobs/{world.job.pk}/memory-point/").json()["copies"]
    assert copies["measured_cost"] is None


def test_idle_job_has_only_its_durable_state(world: World) -> None:
    Job.objects.filter(pk=world.job.pk).update(
        checkpoint=CheckpointFactory.create(job=world.job, iteration=41)
    )
    world.job.generations.update(state="retired")
    point = world.client(world.viewer).get(f"/api/v1/jobs/{world.job.pk}/memory-point/").json()
    assert (point["memory"], point["durable"]["iteration"], point["if_lost"]) == (None, 41, [])


def test_cluster_summary_shows_recent_failures_and_their_cost(world: World, recovery: Recovery) -> None:
    JobProtection.objects.create(job=world.job, state="degraded")
    Recovery.objects.create(
        job=world.foreign_job, failed_generation=1, outcome="recovered", source="durable",
        detected_at=timezone.now() - timedelta(days=2), ended_at=timezone.now() - timedelta(days=2),
    )  # fmt: skip
    summary = world.client(world.stranger).get("/api/v1/cluster/").json()["recovery"]
    assert summary["protection"] == {"full": 0, "degraded": 1, "none": 0}
    assert summary["failures"] == {"software": 0, "hardware": 1, "announced": 0}
    assert summary["recovered_from"] == {"own_memory": 0, "peer_memory": 1, "durable": 0, "none": 0}
    assert summary["time_lost_seconds"] == pytest.approx(11.5)


def test_the_monitoring_system_gets_phases_protection_and_fallbacks(world: World, recovery: Recovery) -> None:
    JobProtection.objects.create(job=world.job, state="full")
    world.job.generations.update(copy_traffic=EVENT_FIELDS["copy_traffic"])
    text = world.client(world.operator).get("/metrics").content.decode()
    for line in (
        'punctual_recovery_phase_seconds{phase="detected",quantile="0.5"} 6.0',
        'punctual_protection{state="full"} 1.0',
        'punctual_recoveries{source="peer_memory"} 1.0',
        "punctual_durable_fallbacks 0.0",
        "punctual_recovery_lost_work_seconds 1.5",
        f'punctual_idle_budget_used_ratio{{job="{world.job.pk}"}} {0.04 / (2 * 0.3)}',
    ):
        assert line in text
