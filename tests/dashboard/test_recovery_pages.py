"""Pages about recoveries: the places of a job's points, failures in the cluster, one recovery's timeline."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from cluster.models import Agent
from dashboard.figures.cluster import cluster_recovery, recovery_phases
from dashboard.figures.cluster.recovery_phases import PHASE_LOOKS, PhasesShown
from dashboard.figures.jobs import job_recovery_points
from dashboard.views.recoveries import RANKS_SHOWN
from recovery.life_cycle.facts import PHASES, RecoveryPhase
from scheduling.models import Job, JobProtection
from scheduling.selectors.recovery.memory_states import MemoryState, Point, Shard
from scheduling.selectors.recovery.recoveries import PhaseSpan, RecoverySummary
from tests.control_plane.agent_api import EVENT_FIELDS
from tests.dashboard.scenario import Scenario, recovered
from tests.factories import CheckpointFactory

LogIn = Callable[[Any], Client]
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def test_a_recoverys_page_shows_losses_to_its_jobs_members_only(scenario: Scenario, as_user: LogIn) -> None:
    job = scenario.running
    recovered(job)
    address = f"/jobs/{job.pk}/recoveries/7/"
    client = as_user(scenario.owner)
    shown = client.get(address).content.decode()
    assert "Server node-a fell silent." in shown
    assert "3 iterations" in shown
    assert "rank 0" in shown
    drawn = client.get(f"{address}panels/phases/").json()["figure"]
    assert list(drawn["data"][0]["y"]) == ["Detected", "Frozen", "Loading"]
    assert client.get(f"{address}panels/nothing/").status_code == 404
    assert client.get(f"/jobs/{job.pk}/recoveries/8/").status_code == 404
    assert f'href="{address}"' in client.get(f"/jobs/{job.pk}/?fragment=recoveries").content.decode()
    for path in (address, f"{address}panels/phases/"):
        assert as_user(scenario.stranger).get(path).status_code == 404


def test_a_jobs_page_says_what_each_servers_death_would_cost(scenario: Scenario, as_user: LogIn) -> None:
    job = scenario.spanning
    live = job.generations.get(state="live")
    checkpoint = CheckpointFactory.create(job=job, iteration=11)
    Job.objects.filter(pk=job.pk).update(checkpoint=checkpoint, iterations_done=30, iterations_per_second=2.0)
    panel = f"/jobs/{job.pk}/panels/recovery-points/"
    before = as_user(scenario.owner).get(panel).json()
    assert before["note"].startswith("In memory: none. On disk: iteration 11,")
    members = live.assignments.select_related("gpu").filter(rank__lt=live.world_size)
    for server in {one.gpu.server_id for one in members}:
        holdings = [
            {
                "job": job.pk, "generation": live.number, "rank": one.rank, "iteration": 29, "bytes": 10,
                "completed_at": timezone.now().isoformat(), "copies": 2, "wanted_copies": 2,
            }
            for one in members
        ]  # fmt: skip
        Agent.objects.filter(server=server).update(memory_store={"holdings": holdings})
    after = as_user(scenario.owner).get(panel).json()
    assert after["note"].startswith("In memory: iteration 29,")
    assert "Protection: full." in after["note"]
    (bars,) = after["figure"]["data"]
    assert bars["name"] == "Resumes from: a peer's memory"
    assert set(bars["text"]) == {"1"}
    assert "Copies:" not in after["note"]
    live.copy_traffic = EVENT_FIELDS["copy_traffic"]
    live.save()
    told = as_user(scenario.owner).get(panel).json()["note"]
    assert "idle for 300 ms of an iteration's 400 ms; a copy takes 40 ms" in told
    assert "every 2 iterations" in told
    assert "+1.0%" in told


def test_the_overview_counts_protection_failures_and_sources(scenario: Scenario, as_user: LogIn) -> None:
    client = as_user(scenario.owner)
    assert "empty" in client.get("/panels/recovery/").json()
    recovered(scenario.running)
    recovered(scenario.foreign, kind="software", source="own_memory")
    JobProtection.objects.create(job=scenario.running, state="degraded")
    drawn = client.get("/panels/recovery/").json()
    assert {bar["name"] for bar in drawn["figure"]["data"]} == {
        "Jobs protected: degraded", "Failures: software", "Failures: hardware",
        "Recovered from: durable storage", "Recovered from: memory of its own server",
    }  # fmt: skip
    assert "2 failures, 23 s lost: 20 s without training, 3 s trained again." in drawn["note"]


def test_every_phase_has_a_style_and_lasts_until_the_next() -> None:
    assert set(PHASE_LOOKS) == set(PHASES[:-1])
    spans = [
        PhaseSpan(RecoveryPhase.DETECTED, NOON, NOON + timedelta(seconds=6)),
        PhaseSpan(RecoveryPhase.FROZEN, NOON + timedelta(seconds=6), None),
    ]
    drawn = recovery_phases.figure(PhasesShown(spans, NOON, None, NOON + timedelta(seconds=9)))
    assert drawn is not None
    assert list(drawn.data[0].x) == [6000.0, 3000.0]
    assert list(drawn.data[0].text) == ["6 s", "3 s"]
    assert recovery_phases.figure(PhasesShown([], None, None, NOON)) is None


def test_a_job_that_does_not_train_has_no_bars() -> None:
    shown = job_recovery_points.RecoveryPoints(None, Point(0, None), NOON)
    assert job_recovery_points.figure(shown) is None
    assert job_recovery_points.caption(shown) == "In memory: none. On disk: none."


def test_a_job_that_does_not_train_says_what_it_has_on_disk(scenario: Scenario, as_user: LogIn) -> None:
    job = scenario.running
    job.generations.all().delete()
    Job.objects.filter(pk=job.pk).update(checkpoint=CheckpointFactory.create(job=job, iteration=11))
    told = as_user(scenario.owner).get(f"/jobs/{job.pk}/panels/recovery-points/").json()
    assert told["empty"] == "Shown while the job trains."
    assert told["note"].startswith("In memory: none. On disk: iteration 11,")
    Job.objects.filter(pk=job.pk).update(state="completed", finished_at=timezone.now())
    told = as_user(scenario.owner).get(f"/jobs/{job.pk}/panels/recovery-points/").json()
    assert told == {"absent": True}, "nothing will come"


def test_only_the_costliest_of_many_servers_are_drawn(scenario: Scenario) -> None:
    many = job_recovery_points.MOST_BARS + 10
    shards = [Shard(rank, rank, 50 - rank, 1, NOON, 1, 2) for rank in range(many)]
    names = {server: f"node-{server}" for server in range(many)}
    state = MemoryState(
        scenario.running, 1, many, names, tuple(names), shards, Point(5, NOON), "memory is short"
    )  # fmt: skip
    shown = job_recovery_points.RecoveryPoints(state, Point(5, NOON), NOON)
    drawn = job_recovery_points.figure(shown)
    assert drawn is not None
    assert sum(len(bars.y) for bars in drawn.data) == job_recovery_points.MOST_BARS
    caption = job_recovery_points.caption(shown)
    assert f"{job_recovery_points.MOST_BARS} costliest of its {many} servers" in caption


def test_a_recovery_of_many_ranks_shows_the_first_and_how_many_more(
    scenario: Scenario, as_user: LogIn
) -> None:
    job = scenario.running
    found = recovered(job)
    source = found.sources[0]
    found.sources = [{**source, "rank": rank} for rank in range(RANKS_SHOWN + 3)]
    found.save()
    shown = as_user(scenario.owner).get(f"/jobs/{job.pk}/recoveries/7/").content.decode()
    assert f"rank {RANKS_SHOWN - 1} on" in shown
    assert f"rank {RANKS_SHOWN} on" not in shown
    assert "And 3 more ranks." in shown


def test_a_quiet_cluster_has_no_figure() -> None:
    none = RecoverySummary(60.0, {"full": 0}, {"software": 0, "hardware": 0}, {"durable": 0}, 0, 0.0, 0.0)
    assert cluster_recovery.figure(none) is None
