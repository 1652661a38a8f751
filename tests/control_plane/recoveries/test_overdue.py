"""Overdue recoveries and copies, and the retention of recoveries."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cluster.models import Agent, Cluster, Server
from scheduling.choices import (
    GenerationState,
    ProtectionState,
    RecoveryOutcome,
)
from scheduling.models import Incident, Job, JobProtection, Recovery
from scheduling.selectors.recovery.memory_states import memory_state
from scheduling.services.agents.leases import expire_leases, reconcile
from scheduling.services.agents.protection_watch import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    patience_with_copies,
    patience_with_recoveries,
    recovery_seconds,
)
from scheduling.services.long_work import housekeeping
from scheduling.services.planning.planning import run_planner
from tests.control_plane.recoveries.scenes import (
    Nodes,
    Submit,
    both_train,
    check_leases,
    fail,
    go_on,
    reached,
    train_on,
)
from tests.control_plane.simulated_time import SimulatedTime

pytestmark = pytest.mark.django_db(transaction=True)


def test_overdue_recovery_is_an_incident_until_the_job_trains(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    fail(here, job)
    Server.objects.update(drain="drained")
    patience = patience_with_recoveries(cluster)
    assert patience > 2 * cluster.fence_seconds
    time.turn(patience - 1.0)
    reconcile()
    late = Incident.objects.filter(kind=Incident.Kind.UNRECOVERED, job=job)
    assert not late.exists()
    time.turn(2.0)
    reconcile()
    reconcile()
    incident = late.get()
    assert (incident.resolved_at, incident.count) == (None, 1)
    assert "waits for GPUs" in incident.message
    run_planner("test")
    assert late.filter(resolved_at=None).exists(), "a planned job does not train yet"
    Server.objects.update(drain="none")
    go_on(time, here, other)
    assert not late.filter(resolved_at=None).exists()


def test_a_stop_of_the_platform_makes_no_recovery_overdue(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    fail(here, job)
    Server.objects.update(drain="drained")
    expire_leases()
    time.turn(2 * recovery_seconds(cluster) + 1.0)
    expire_leases()
    reconcile()
    assert not Incident.objects.filter(kind=Incident.Kind.UNRECOVERED).exists()


def test_an_unpromised_job_may_wait_for_gpus_of_other_jobs(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    fail(here, job)
    time.turn(patience_with_recoveries(cluster) + 1.0)
    reconcile()
    late = Incident.objects.filter(kind=Incident.Kind.UNRECOVERED, job=job)
    assert not late.exists()
    soon = timezone.now() + timedelta(hours=1)
    Job.objects.update(promised=True, service_class="slo", deadline_at=soon)
    reconcile()
    assert late.get().resolved_at is None


def test_patience_follows_from_recent_recovery_times(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    now = timezone.now()
    for number, seconds in enumerate((20.0, 30.0, 40.0), start=100):
        Recovery.objects.create(
            job=job,
            failed_generation=number,
            outcome=RecoveryOutcome.RECOVERED,
            detected_at=now - timedelta(seconds=seconds),
            running_at=now,
            ended_at=now,
        )
    assert recovery_seconds(cluster) == pytest.approx(30.0)
    Recovery.objects.update(detected_at=now - timedelta(days=3))
    assert recovery_seconds(cluster) == LONGEST_SECONDS
    Recovery.objects.update(detected_at=now)
    assert recovery_seconds(cluster) == SHORTEST_SECONDS


def quick_recoveries(job: Job, seconds: float = 5.0) -> None:
    """Record recent recoveries of this duration."""
    now = timezone.now()
    for number in range(100, 105):
        Recovery.objects.create(
            job=job,
            failed_generation=number,
            outcome=RecoveryOutcome.RECOVERED,
            detected_at=now - timedelta(seconds=seconds),
            running_at=now,
            ended_at=now,
        )


def test_a_lost_server_is_no_incident_before_its_fence(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    Cluster.objects.update(fence_seconds=60.0, suspect_seconds=10.0)
    cluster.refresh_from_db()
    here, other = nodes
    job = both_train(submit, nodes)
    quick_recoveries(job)
    soon = timezone.now() + timedelta(hours=1)
    Job.objects.update(promised=True, service_class="slo", deadline_at=soon)
    # A peer reports the loss at once, long before the server counts as silent.
    fail(here, job, "peer_lost")
    late = Incident.objects.filter(kind=Incident.Kind.UNRECOVERED)
    while not Server.objects.filter(state="down").exists():
        time.turn(4.0)
        check_leases(cluster, here)
        reconcile()
        assert not late.exists()
    Server.objects.update(drain="drained")
    for _ in range(4):
        time.turn(patience_with_recoveries(cluster) / 4 - 0.25)
        check_leases(cluster, here)
        reconcile()
    assert not late.exists(), "its patience starts with the fence"
    time.turn(2.0)
    check_leases(cluster, here)
    reconcile()
    assert late.get().resolved_at is None


def test_recovery_time_excludes_the_fence(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    job = train_on(submit, *nodes)
    quick_recoveries(job, 100.0)
    assert recovery_seconds(cluster) == pytest.approx(100.0)
    fenced_at = timezone.now() - timedelta(seconds=20.0)
    Recovery.objects.filter(job=job).update(fenced_at=fenced_at)
    assert recovery_seconds(cluster) == pytest.approx(20.0)
    # The server was fenced after the job had resumed: the fence does not count.
    Recovery.objects.filter(job=job).update(fenced_at=timezone.now() + timedelta(seconds=20.0))
    assert recovery_seconds(cluster) == pytest.approx(100.0)


def holding(job: Job, server: Server, rank: int, iteration: int, **more: int) -> None:
    """Report that a server's store holds a rank's shard."""
    live = job.generations.get(state=GenerationState.LIVE)
    agent = Agent.objects.get(server=server)
    agent.memory_store.setdefault("holdings", []).append(
        {
            "job": job.pk, "generation": live.number, "rank": rank, "iteration": iteration, "bytes": 10,
            "completed_at": timezone.now().isoformat(), **more,
        }
    )  # fmt: skip
    agent.save(update_fields=["memory_store"])


def test_copies_missing_for_too_long_are_an_incident(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    first, second = nodes
    job = both_train(submit, nodes)
    ranks = job.generations.get(state=GenerationState.LIVE).world_size
    for rank in range(ranks):
        holding(job, first.agent.server, rank, 50, copies=1 if rank == 2 else 2, wanted_copies=2)
    reconcile()
    assert JobProtection.objects.get(job=job).state == ProtectionState.DEGRADED
    time.turn(patience_with_copies(cluster) + 1.0)
    Agent.objects.update(last_report_at=timezone.now())
    reconcile()
    incident = Incident.objects.get(kind=Incident.Kind.UNPROTECTED)
    assert (incident.job_id, "ranks 2 have" in incident.message) == (job.pk, True)
    Agent.objects.update(memory_store={})
    for rank in range(ranks):
        holding(job, first.agent.server, rank, 60, copies=2, wanted_copies=2)
        holding(job, second.agent.server, rank, 60)
    reconcile()
    incident.refresh_from_db()
    assert incident.resolved_at is not None
    assert JobProtection.objects.get(job=job).state == ProtectionState.FULL


def test_missing_state_in_memory_is_an_incident(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    job = both_train(submit, nodes)
    live = job.generations.get(state=GenerationState.LIVE)
    reconcile()
    assert JobProtection.objects.get(job=job).state == ProtectionState.NONE
    time.turn(patience_with_copies(cluster) + 1.0)
    reconcile()
    unprotected = Incident.objects.filter(kind=Incident.Kind.UNPROTECTED)
    assert not unprotected.exists(), "no copies were ordered"
    live.protection = {"replicas": 2, "holders": []}
    live.save()
    reconcile()
    incident = unprotected.get()
    assert incident.job_id == job.pk
    assert incident.message.startswith(
        "Of 2 copies of its state that were ordered in memory none counts since "
    )


def both_keep(job: Job, nodes: Nodes, iteration: int) -> None:
    """Report that each server has all shards of that iteration."""
    Agent.objects.update(memory_store={})
    live = job.generations.get(state=GenerationState.LIVE)
    for node in nodes:
        for rank in range(live.world_size):
            holding(job, node.agent.server, rank, iteration)


def protection(job: Job) -> tuple[ProtectionState, str]:
    state = memory_state(Job.objects.select_related("checkpoint").get(pk=job.pk))
    assert state is not None
    return state.protection, state.reason


def test_stores_that_do_not_answer_protect_nothing(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    job = both_train(submit, nodes)
    both_keep(job, nodes, 50)
    assert protection(job) == (ProtectionState.FULL, "")
    first, second = (node.agent for node in nodes)
    first.refresh_from_db()
    first.memory_store["silent_seconds"] = 7.0
    first.save()
    assert protection(job) == (ProtectionState.DEGRADED, "the in-memory store of node-1 does not answer")
    Server.objects.filter(pk=second.server_id).update(state="suspect")
    assert protection(job) == (ProtectionState.NONE, "the in-memory store of node-1 does not answer")


def test_copies_much_older_than_the_durable_state_protect_nothing(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    job = both_train(submit, nodes)
    both_keep(job, nodes, 233)
    reached(job, 951)
    assert protection(job)[0] == ProtectionState.FULL, "there is no newer durable state"
    worker = nodes[0].rank_zero(job.pk)
    assert worker is not None
    nodes[0].state_stored(worker, 900)
    for node in nodes:
        node.report()
    reached(job, 951)
    assert protection(job)[0] == ProtectionState.NONE
    both_keep(job, nodes, 890)
    assert protection(job)[0] == ProtectionState.FULL, "the copies are hardly older than the durable state"


def test_cost_of_losing_each_server_is_shown(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    first, second = nodes
    job = both_train(submit, nodes)
    live = job.generations.get(state=GenerationState.LIVE)
    servers = {"node-1": first.agent.server, "node-2": second.agent.server}
    server_of_rank = {
        entry.rank: entry.gpu.server for entry in live.assignments.select_related("gpu__server")
    }
    for rank in range(live.world_size):
        holding(job, server_of_rank[rank], rank, 49)
    state = memory_state(Job.objects.select_related("checkpoint").get(pk=job.pk))
    assert state is not None
    assert state.in_memory is not None
    assert (state.in_memory.iteration, state.committed_lag()) == (49, 1)
    assert [(entry.name, len(entry.ranks)) for entry in state.holders()] == [("node-1", 4), ("node-2", 4)]
    # Each server keeps only its own ranks' shards: losing either server loses the point.
    assert state.protection == ProtectionState.DEGRADED
    assert {(entry.iterations, entry.seconds, entry.source) for entry in state.losses()} == {
        (50, 5.0, "none")
    }
    for rank in range(live.world_size):
        peer = servers["node-2"] if server_of_rank[rank].name == "node-1" else servers["node-1"]
        holding(job, peer, rank, 48)
    state = memory_state(Job.objects.select_related("checkpoint").get(pk=job.pk))
    assert state is not None
    assert state.protection == ProtectionState.FULL
    assert [(entry.iterations, entry.source) for entry in state.losses()] == [(2, "peer_memory")] * 2


def test_old_recoveries_are_deleted_and_open_ones_never(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    now = timezone.now()
    monkeypatch.setattr(housekeeping, "MOST_RECOVERIES", 3)
    for number in range(100, 106):
        Recovery.objects.create(
            job=job, failed_generation=number, outcome=RecoveryOutcome.RECOVERED, ended_at=now
        )
    Recovery.objects.filter(failed_generation=105).update(ended_at=now - timedelta(days=91))
    Recovery.objects.create(job=job, failed_generation=99, detected_at=now - timedelta(days=100))
    housekeeping.trim_recoveries(now)
    remaining = Recovery.objects.order_by("pk").values_list("failed_generation", flat=True)
    assert list(remaining) == [103, 104, 99]
