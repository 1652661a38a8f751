"""One server may be lost at the worst moment and every promise still holds: live services, simulated time,
reserve 1."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Cluster, Server
from scheduling.models import Assignment, CurveLevel, Generation, Incident, Job, Offer, ScalingCurve
from scheduling.services.agents.protection_watch import watch_protection
from scheduling.services.generations.failure_charges import FailureCharges, counts_on_sentence
from scheduling.services.snapshots.snapshots import pool_kinds, pool_snapshot
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, SimulatedWorker, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def test_reserve_slack_covers_work_lost_since_the_last_checkpoint(
    cluster: Cluster,
) -> None:
    """The slack holds fence, margin, a start, and the minute of work since the last checkpoint."""

    def slack() -> float:
        return FailureCharges(cluster).asked_for(None, None).slack_seconds

    cluster.reserve_servers = 1
    fence = cluster.fence_seconds + cluster.fence_margin_seconds
    assert slack() >= fence + 60.0 + 2 * cluster.slot_seconds
    cluster.reserve_servers = 2
    assert slack() >= 2 * (fence + 60.0)
    cluster.reserve_servers = 0
    assert slack() == 0.0


def test_workers_store_their_state_as_often_as_the_slack_assumes(cluster: Cluster, submit: Submit) -> None:
    agents = [SimulatedAgent.enrol(name, 4, SPEED) for name in ("node-1", "node-2")]
    Cluster.objects.update(reserve_servers=1)
    job = submit("best_effort", iterations=100_000, checkpoint_seconds=3600.0)
    settle(*agents)
    (seconds,) = {
        worker.entry["checkpoint_seconds"]
        for agent in agents
        for worker in agent.workers.values()
        if worker.entry["job"] == job.pk and worker.entry["purpose"] == "training"
    }
    assert seconds == 60.0


def test_workers_are_sent_the_operators_failure_rate(cluster: Cluster, submit: Submit) -> None:
    agent = SimulatedAgent.enrol("node-1", 4, SPEED)
    Cluster.objects.update(failures_per_server_day=48.0)
    submit("best_effort", iterations=100_000)
    settle(agent)
    assert {worker.entry["failures_per_server_day"] for worker in agent.workers.values()} == {48.0}


def test_a_deadline_that_a_lost_server_would_break_is_not_promised(cluster: Cluster, submit: Submit) -> None:
    agents = [SimulatedAgent.enrol(name, 4, SPEED) for name in ("node-1", "node-2")]
    measured_job = submit("best_effort", iterations=10)
    settle(*agents)
    next(agent for agent in agents if agent.rank_zero(measured_job.pk)).complete(measured_job.pk)
    for agent in agents:
        agent.report()
    settle(*agents)
    Cluster.objects.update(reserve_servers=1)
    fence = cluster.fence_seconds + cluster.fence_margin_seconds
    # 1000 iterations take 29 s on one server: there is time for a fence and a start, but not for a minute of
    # lost work.
    tight = submit(seconds=30 + fence + 20, iterations=1000)
    settle(*agents, rounds=1)
    tight.refresh_from_db()
    assert not tight.promised
    roomy = submit(seconds=30 + fence + 20 + 70, iterations=1000)
    settle(*agents, rounds=1)
    roomy.refresh_from_db()
    assert roomy.promised
    assert roomy.deadline_at is not None
    assert roomy.deadline_at > timezone.now()


def measure_function(submit: Submit, *agents: SimulatedAgent, **figures: float) -> None:
    """Train a job of the same function to its end, with stored states."""
    measured_job = submit("best_effort", iterations=10)
    settle(*agents)
    agent = next(agent for agent in agents if agent.rank_zero(measured_job.pk))
    for sender in agents:
        for worker in sender.workers.values():
            if figures and worker.entry["job"] == measured_job.pk and worker.entry["purpose"] == "training":
                sender.event(worker, "shard_stored", **shard(worker, 5), **figures)
        sender.report()
    agent.complete(measured_job.pk)
    for sender in agents:
        sender.report()
    settle(*agents)


def shard(worker: SimulatedWorker, iteration: int) -> dict[str, Any]:
    name = f"{worker.entry['job']}/checkpoints/{worker.entry['generation']}-{iteration}/{worker.rank}.pt"
    return {
        "rank": worker.rank, "iteration": iteration, "uri": f"memory://{name}", "bytes": 1000,
        "sha256": "0" * 64, "reason": "periodic",
    }  # fmt: skip


def with_stores(*agents: SimulatedAgent) -> None:
    """Give the servers of these agents 1 GB to keep states in memory."""
    for agent in agents:
        Server.objects.filter(pk=agent.agent.server_id).update(memory_store_bytes=10**9)


def test_copies_in_memory_allow_a_deadline_that_storage_does_not(cluster: Cluster, submit: Submit) -> None:
    """Once a state of the function was stored, a lost server costs 15 s of work instead of 60 s."""
    agents = [SimulatedAgent.enrol(name, 4, SPEED) for name in ("node-1", "node-2")]
    measure_function(submit, *agents, copy_seconds=0.01, writing_seconds=0.05, store_seconds=0.05)
    Cluster.objects.update(reserve_servers=1)
    fence = cluster.fence_seconds + cluster.fence_margin_seconds
    seconds = 30 + fence + 45

    def decided_job() -> Job:
        job = submit(seconds=seconds, iterations=1000)
        settle(*agents, rounds=1)
        job.refresh_from_db()
        return job

    refused = decided_job()
    assert not refused.promised, "no server keeps anything in memory"
    assert refused.protection_class["replicas"] == 1
    with_stores(*agents)
    promised = decided_job()
    assert promised.promised
    assert promised.protection_class["replicas"] == 2
    assert promised.verdict is not None
    assert "counts on one lost server" in promised.verdict["counts_on"]
    assert "from a peer's memory" in promised.verdict["counts_on"]
    settle(*agents)
    safe_seconds = [
        worker.entry["safe_seconds"]
        for agent in agents
        for worker in agent.workers.values()
        if worker.entry["job"] == promised.pk
    ]
    assert set(safe_seconds) == {15.0}, "its workers keep what was promised"
    # A promise keeps its protection when the configuration changes.
    Server.objects.update(memory_store_bytes=0)
    Cluster.objects.update(reserve_servers=0)
    settle(*agents)
    safe_seconds = [w.entry["safe_seconds"] for a in agents for w in a.workers.values()]
    assert set(safe_seconds) == {15.0}


def test_function_without_a_stored_state_counts_on_durable_storage(cluster: Cluster, submit: Submit) -> None:
    agents = [SimulatedAgent.enrol(name, 4, SPEED) for name in ("node-1", "node-2")]
    measure_function(submit, *agents)
    with_stores(*agents)
    Cluster.objects.update(reserve_servers=1)
    job = submit(seconds=600, iterations=1000)
    settle(*agents, rounds=1)
    job.refresh_from_db()
    assert job.promised
    assert job.protection_class["replicas"] == 1
    assert job.verdict is not None
    assert "from durable storage" in job.verdict["counts_on"]


def test_storing_cost_is_learnt_per_worker_and_forgotten_slowly(cluster: Cluster, submit: Submit) -> None:
    agents = [SimulatedAgent.enrol(name, 4, SPEED) for name in ("node-1", "node-2")]
    measure_function(submit, *agents, copy_seconds=0.1, writing_seconds=0.2, store_seconds=0.3)
    (curve,) = ScalingCurve.objects.all()
    workers = Generation.objects.filter(purpose="training").latest("pk").world_size
    assert curve.copy_seconds == pytest.approx(0.1 * workers)
    assert curve.storing_seconds == pytest.approx(0.5 * workers)
    assert curve.state_bytes == 1000 * workers
    measure_function(submit, *agents, copy_seconds=0.0, writing_seconds=0.0, store_seconds=0.0)
    curve.refresh_from_db()
    assert curve.copy_seconds is not None
    assert 0.0 < curve.copy_seconds < 0.1 * workers


def test_operators_see_jobs_whose_loss_would_exceed_their_promise(cluster: Cluster, submit: Submit) -> None:
    agents = [SimulatedAgent.enrol(name, 4, SPEED) for name in ("node-1", "node-2")]
    measure_function(submit, *agents)
    Cluster.objects.update(reserve_servers=1)
    job = submit(seconds=3600, iterations=5000)
    settle(*agents)
    job.refresh_from_db()
    assert job.promised
    most = job.protection_class["lost_seconds"]
    incidents = Incident.objects.filter(kind=Incident.Kind.TOO_OLD, resolved_at=None)
    for lost_seconds, expected in ((most - 5.0, False), (most + 60.0, True)):
        Job.objects.filter(pk=job.pk).update(
            iterations_done=round(10 * lost_seconds), iterations_per_second=10.0
        )
        watch_protection(Cluster.objects.get(pk=cluster.pk), timezone.now())
        assert incidents.exists() == expected


def test_expected_failures_lower_what_may_be_promised(cluster: Cluster, submit: Submit) -> None:
    """200 failures a day of about 2.5 minutes each take a third of a server's time."""
    agents = [SimulatedAgent.enrol(name, 4, SPEED) for name in ("node-1", "node-2")]
    measure_function(submit, *agents)
    measured = {level.gpus: level.iterations_per_second for level in CurveLevel.objects.all()}
    seconds, iterations = 1000.0, int(800 * max(measured.values()))

    def decided_job() -> Job:
        job = submit(seconds=seconds, iterations=iterations)
        settle(*agents, rounds=1)
        job.refresh_from_db()
        return job

    Cluster.objects.update(failures_per_server_day=200.0)
    refused = decided_job()
    assert not refused.promised
    assert {level.gpus: level.iterations_per_second for level in CurveLevel.objects.all()} == measured
    Offer.objects.all().delete()
    Cluster.objects.update(failures_per_server_day=20.0)
    promised = decided_job()
    assert promised.promised
    assert promised.verdict is not None
    assert "Failures of servers are expected to take up to" in promised.verdict["counts_on"]
    assert "expected" not in counts_on_sentence_at(0.0, promised)


def counts_on_sentence_at(failures_per_server_day: float, job: Job) -> str:
    Cluster.objects.update(failures_per_server_day=failures_per_server_day)
    return counts_on_sentence(job)


def test_progress_is_believed_however_often_servers_fail(cluster: Cluster, submit: Submit) -> None:
    """The expected cost of failures does not bound the progress of a job."""
    agents = [SimulatedAgent.enrol(name, 4, SPEED) for name in ("node-1", "node-2")]
    measure_function(submit, *agents)
    Cluster.objects.update(failures_per_server_day=200.0)
    job = submit(seconds=36_000, iterations=100_000)
    settle(*agents)
    job.refresh_from_db()
    assert job.promised
    generation = Generation.objects.get(job=job, live_at__isnull=False)
    gpus = Assignment.objects.filter(generation=generation).count()
    rate = CurveLevel.objects.get(gpus=gpus).iterations_per_second
    now = timezone.now()
    Generation.objects.filter(pk=generation.pk).update(live_at=now - timedelta(seconds=1000))
    Assignment.objects.filter(job=job).update(held_at=now - timedelta(seconds=1000))
    done = round(1000 * rate)
    Job.objects.filter(pk=job.pk).update(iterations_done=done, iterations_reported_at=now)
    (read,) = [
        candidate
        for candidate in pool_snapshot(cluster, pool_kinds(cluster)[0], now).snapshot.jobs
        if candidate.id == job.pk
    ]
    assert read.remaining_iterations == pytest.approx(100_000 - done, abs=rate)
