"""Recoveries as rows: one for each failure, advanced by agents' reports, complete after any restart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from cluster.models import Agent, Cluster, Server
from scheduling.choices import (
    GenerationState,
    JobState,
    RecoveryKind,
    RecoveryOutcome,
    StateSource,
)
from scheduling.models import Generation, Job, JobEvent, Recovery
from scheduling.selectors.recovery.recoveries import phase_spans
from scheduling.selectors.recovery.state_sources import sources_of
from scheduling.services.agents import leases, recovering
from scheduling.services.agents.drain import server_drain
from scheduling.services.agents.leases import expire_leases, reconcile
from scheduling.services.generations.recoveries import begin_recovery
from scheduling.services.planning.planning import run_planner
from scheduling.services.requests.jobs import job_cancel, job_pause
from scheduling.services.rows.records import lock_cluster
from tests.control_plane.conftest import SPEED
from tests.control_plane.recoveries.scenes import (
    Nodes,
    Submit,
    assert_phases_ascend,
    both_train,
    fail,
    go_on,
    lose,
    memory_of,
    only_recovery,
    reached,
    train_on,
)
from tests.control_plane.simulated_agent import SimulatedAgent, SimulatedWorker, settle
from tests.control_plane.simulated_time import SimulatedTime
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)
#: Less than one turn of the simulated clock, which advances a microsecond per row.
IMMEDIATELY = timedelta(milliseconds=1)


def test_a_killed_workers_job_recovers_from_the_memory_of_its_server(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other, durable=20)
    here.report(**memory_of(here, job, 25))
    live = job.generations.get(state=GenerationState.LIVE)
    time.turn(5.0)
    reported_at = timezone.now()
    fail(here, job)
    opened = only_recovery(job)
    assert (opened.kind, opened.outcome, opened.phase) == ("software", "open", "detected")
    assert (opened.failed_generation, opened.iteration_reached) == (live.number, 27)
    assert opened.detected_at - reported_at < IMMEDIATELY
    assert JobEvent.objects.filter(job=job, kind="suspended", message__contains="iteration 25").exists()
    time.turn(3.0)
    # The state is on this server: keep the job off the other one's GPUs.
    Server.objects.filter(pk=other.agent.server_id).update(drain="drained")
    settle(here)
    recovery = only_recovery(job)
    assert (recovery.outcome, recovery.phase) == ("recovered", "running")
    assert recovery.recovering_generation == live.number + 1
    assert {entry["source"] for entry in recovery.sources} == {StateSource.OWN_MEMORY}
    assert all(entry["holders"] == [here.agent.server_id] for entry in recovery.sources)
    assert (recovery.source, recovery.iteration_resumed, recovery.iterations_lost()) == ("own_memory", 25, 2)
    assert recovery.lost_work_seconds() == pytest.approx(0.2)
    assert (recovery.lost_servers, recovery.fenced_at, recovery.attempts, recovery.losses) == ([], None, 0, 1)
    assert recovery.down_seconds(timezone.now()) == pytest.approx(3.0, abs=0.1)
    assert_phases_ascend(recovery)
    event = JobEvent.objects.get(job=job, kind="recovered")
    assert "after the failure was noticed, from iteration 25" in event.message


def starting_again(
    time: SimulatedTime, here: SimulatedAgent, other: SimulatedAgent, job: Job
) -> list[SimulatedWorker]:
    """Fail a worker; return its replacements on its server, with processes started but no worker ready."""
    Server.objects.filter(pk=other.agent.server_id).update(drain="drained")
    fail(here, job)
    ranks: list[SimulatedWorker] = []
    for _ in range(8):
        time.turn(0.1)
        run_planner("test")
        here.obey()
        ranks = [worker for (owner, _, _), worker in here.workers.items() if owner == job.pk]
        here.events.clear()
        for worker in ranks:
            worker.phase = "preparing"
        here.report()
        reconcile()
        if ranks:
            break
    return ranks


def test_the_start_of_workers_is_a_phase_before_loading(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other, durable=20)
    ranks = starting_again(time, here, other, job)
    assert only_recovery(job).phase == "starting"
    time.turn(4.0)
    began = timezone.now()
    for position, worker in enumerate(ranks):
        worker.phase, worker.ready_at = "loading", began - timedelta(seconds=0.5 + position)
    here.report()
    assert only_recovery(job).phase == "loading"
    # The time of the last rank by its own clock, however late the report is.
    assert only_recovery(job).loading_at == began - timedelta(seconds=0.5)
    time.turn(2.0)
    for worker in ranks:
        worker.phase = "training"
    here.event(ranks[0], "first_iteration", iteration=21, pause_seconds=0.1)
    here.report()
    recovery = only_recovery(job)
    assert recovery.outcome == RecoveryOutcome.RECOVERED
    seconds = {span.phase.value: span.seconds(timezone.now()) for span in phase_spans(recovery)}
    assert seconds["starting"] == pytest.approx(3.5)
    assert seconds["loading"] == pytest.approx(2.5)
    assert_phases_ascend(recovery)


def test_workers_that_never_finish_loading_are_replaced(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other, durable=20)
    for worker in starting_again(time, here, other, job):
        worker.phase, worker.ready_at = "loading", timezone.now()
    here.report()
    begun = only_recovery(job)
    assert begun.phase == "loading"
    time.turn(cluster.prepare_timeout_seconds + cluster.handover_timeout_seconds + 1.0)
    here.report()
    reconcile()
    again = only_recovery(job)
    assert (again.attempts, again.recovering_generation) == (1, None)
    assert again.last_attempt == "it was not live in time"
    replaced = job.generations.filter(number__gt=begun.failed_generation).earliest("number")
    assert (replaced.number, replaced.state) == (begun.recovering_generation, GenerationState.RETIRED)
    settle(here)
    assert only_recovery(job).outcome == "recovered"


def test_lost_server_is_detected_when_silent_and_fenced_later(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other, durable=20)
    silent_at = lose(cluster, time, other)
    settle(other)
    recovery = only_recovery(job)
    assert (recovery.kind, recovery.outcome) == (RecoveryKind.HARDWARE, RecoveryOutcome.RECOVERED)
    assert [server["name"] for server in recovery.lost_servers] == ["node-1"]
    failed = job.generations.get(number=recovery.failed_generation)
    assert recovery.lost_ranks == list(range(failed.world_size))
    assert recovery.detected_at == silent_at
    assert recovery.fenced_at is not None
    assert (
        recovery.fenced_at - silent_at
    ).total_seconds() > cluster.fence_seconds - cluster.suspect_seconds - 1
    assert recovery.frozen_at is not None
    assert recovery.frozen_at >= recovery.fenced_at
    assert (recovery.source, recovery.iteration_resumed, recovery.iterations_lost()) == ("durable", 20, 7)
    assert_phases_ascend(recovery)


@pytest.mark.parametrize(("apart", "losses"), [(1.0, 1), (3.0, 2)])
def test_servers_lost_within_two_seconds_are_one_loss(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit, apart: float, losses: int
) -> None:
    first, second = nodes
    job = both_train(submit, nodes)
    Agent.objects.filter(pk=first.agent.pk).update(last_report_at=timezone.now() - timedelta(seconds=apart))
    lose(cluster, time)
    time.turn(apart + 1.0)
    expire_leases()
    recovery = only_recovery(job)
    assert {server["name"] for server in recovery.lost_servers} == {"node-1", "node-2"}
    assert recovery.lost_ranks == list(
        range(job.generations.get(number=recovery.failed_generation).world_size)
    )
    assert recovery.losses == losses
    assert Recovery.objects.count() == 1


def test_peer_report_is_the_detection_and_names_the_server_later(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    first, second = nodes
    job = both_train(submit, nodes)
    survivor, lost = (second, first)
    worker = next(item for (owner, _, _), item in survivor.workers.items() if owner == job.pk)
    reported_at = timezone.now()
    survivor.event(worker, "failed", rank=worker.rank, reason="peer_lost", message="reset", traceback="")
    survivor.report()
    assert only_recovery(job).kind == RecoveryKind.SOFTWARE
    lose(cluster, time, survivor)
    recovery = only_recovery(job)
    assert (recovery.kind, [item["name"] for item in recovery.lost_servers]) == (
        "hardware",
        [lost.agent.server.name],
    )
    assert recovery.detected_at - reported_at < IMMEDIATELY
    assert recovery.losses == 1
    settle(survivor)
    assert only_recovery(job).outcome == RecoveryOutcome.RECOVERED


def test_server_fenced_after_restart_makes_a_recovery_one_of_hardware(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    lost, survivor = nodes
    job = both_train(submit, nodes)
    worker = next(item for (owner, _, _), item in survivor.workers.items() if owner == job.pk)
    survivor.event(worker, "failed", rank=worker.rank, reason="peer_lost", message="reset", traceback="")
    survivor.report()
    Server.objects.filter(pk=lost.agent.server_id).update(drain="drained")
    go_on(time, survivor)
    before = only_recovery(job)
    assert (before.kind, before.outcome) == (RecoveryKind.SOFTWARE, RecoveryOutcome.RECOVERED)
    assert before.frozen_at is None, "the silent server has not confirmed anything"
    lose(cluster, time, survivor)
    after = only_recovery(job)
    assert (after.kind, after.outcome) == (RecoveryKind.HARDWARE, RecoveryOutcome.RECOVERED)
    assert (after.running_at, after.detected_at) == (before.running_at, before.detected_at)
    assert after.fenced_at is not None
    assert after.running_at is not None
    assert after.fenced_at > after.running_at
    assert [item["name"] for item in after.lost_servers] == ["node-1"]


def test_failed_start_counts_as_an_attempt_and_recovery_restarts(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other, durable=20)
    here.report(**memory_of(here, job, 25))
    fail(here, job)
    Server.objects.filter(pk=other.agent.server_id).update(drain="drained")
    time.turn(1.0)
    run_planner("test")
    here.report()
    reconcile()
    begun = only_recovery(job)
    assert begun.recovering_generation == begun.failed_generation + 1
    assert begun.source == StateSource.OWN_MEMORY
    time.turn(cluster.prepare_timeout_seconds + 1.0)
    here.report()
    reconcile()
    again = only_recovery(job)
    assert (again.attempts, again.recovering_generation, again.source) == (1, None, "")
    assert "in time" in again.last_attempt
    settle(here)
    recovery = only_recovery(job)
    assert (recovery.outcome, recovery.attempts, recovery.source) == ("recovered", 1, "durable")
    assert recovery.iterations_lost() == 7
    assert_phases_ascend(recovery)


@pytest.mark.parametrize("how", ["cancelled", "paused"])
def test_a_recovery_ends_with_its_job(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit, how: str
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    fail(here, job)
    job.refresh_from_db()
    (job_cancel if how == "cancelled" else job_pause)(job=job, actor=job.owner)
    reconcile()
    recovery = only_recovery(job)
    assert (recovery.outcome, recovery.running_at) == (RecoveryOutcome.BROKEN_OFF, None)
    assert how in recovery.broken_off_because
    assert recovery.ended_at is not None


def test_drained_server_is_an_announced_failure_without_loss(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    reached(job, 0)
    server_drain(server=here.agent.server, actor=UserFactory.create(is_staff=True), reason="repair")
    go_on(time, here, other, rounds=12)
    recovery = only_recovery(job)
    assert (recovery.kind, recovery.outcome, recovery.iterations_lost()) == ("announced", "recovered", 0)
    assert [server["name"] for server in recovery.lost_servers] == ["node-1"]
    assert recovery.fenced_at is None
    assert not Recovery.objects.exclude(kind=RecoveryKind.ANNOUNCED).exists()


def test_server_lost_during_its_drain_is_a_hardware_failure(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other, durable=20)
    server_drain(server=here.agent.server, actor=UserFactory.create(is_staff=True), reason="repair")
    for _ in range(12):
        if Recovery.objects.exists():
            break
        go_on(time, other, here, rounds=1)
    assert only_recovery(job).kind == RecoveryKind.ANNOUNCED
    silent_at = lose(cluster, time, other)
    go_on(time, other)
    recovery = only_recovery(job)
    assert (recovery.kind, recovery.outcome) == (RecoveryKind.HARDWARE, RecoveryOutcome.RECOVERED)
    (lost,) = recovery.lost_servers
    assert (lost["name"], lost["silent_at"]) == ("node-1", silent_at.isoformat())
    assert recovery.lost_ranks


def test_a_job_that_only_grows_has_no_recovery(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    Cluster.objects.update(planned_version=0)
    go_on(time, here, other)
    assert job.generations.count() > 1
    assert not Recovery.objects.exists()


def test_two_sweepers_open_one_recovery(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    fail(here, job)
    recovery = only_recovery(job)
    failed = job.generations.get(number=recovery.failed_generation)
    with transaction.atomic():
        lock_cluster(cluster.pk)
        assert begin_recovery(job, failed, "again", timezone.now()).pk == recovery.pk
    recovery.pk = None
    with pytest.raises(IntegrityError, match="recovery_once_per_generation|job_recovers_once_at_a_time"):
        recovery.save(force_insert=True)


def test_state_source_of_each_rank_is_own_peer_or_storage() -> None:
    memory = {
        "from": "memory",
        "shards": [
            {"reader": 0, "holders": [{"tier": "memory", "server": 7}, {"tier": "memory", "server": 8}]},
            {"reader": 1, "holders": [{"tier": "memory", "server": 7}]},
        ],
    }  # fmt: skip
    assert [source["source"] for source in sources_of(memory, [7, 8, 9])] == [
        "own_memory", "peer_memory", "peer_memory",
    ]  # fmt: skip
    durable = {
        "from": "checkpoint",
        "shards": [{"id": 0, "reader": 0, "holders": [{"tier": "store", "uri": "x"}]}],
    }
    assert [source["source"] for source in sources_of(durable, [7, 8])] == ["durable", "durable"]
    assert [source["source"] for source in sources_of({"from": "nothing"}, [7])] == ["none"]


# The platform stops between any two steps --------------------------------------------------------------


class Dropped(Exception):
    """Stands for the death of the platform's process."""


@pytest.fixture
def scenario(cluster: Cluster, submit: Submit) -> Callable[[], dict[str, Any]]:
    """Return a function that loses a server; the first start elsewhere fails, the second trains. It returns
    the recovery's row with times in seconds since the failure. Each call has a new clock and new agents."""

    hours = itertools.count()

    def play() -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            time = SimulatedTime(patch)
            time.turn(3600.0 * next(hours))  # later than all rows of earlier calls
            Agent.objects.all().delete()
            for job in Job.objects.exclude(state=JobState.CANCELLED):
                job_cancel(job=job, actor=job.owner)
            Generation.objects.all().delete()
            Server.objects.update(state="removed")
            cluster.refresh_from_db()
            names = [f"node-{Server.objects.count() + offset}" for offset in range(2)]
            here, other = (SimulatedAgent.enrol(name, 4, SPEED) for name in names)
            job = train_on(submit, here, other, durable=20)
            began = timezone.now()
            lose(cluster, time, other)
            run_planner("test")
            for _ in range(2):
                other.report()
                reconcile()
            time.turn(cluster.prepare_timeout_seconds + 1.0)
            for _ in range(3):
                other.report()
                reconcile()
            settle(other)
            for _ in range(3):
                reconcile()
            return since(only_recovery(job), began)

    return play


def since(recovery: Recovery, began: datetime) -> dict[str, Any]:
    row = {
        name: value
        for name, value in recovery.__dict__.items()
        if not name.startswith("_") and name not in ("id", "job_id", "lost_servers", "sources")
    }
    row["ranks"] = [(entry["rank"], entry["source"]) for entry in recovery.sources]
    for name, value in row.items():
        if isinstance(value, datetime):
            row[name] = round((value - began).total_seconds(), 3)
    row.pop("reason")
    row["recovering_generation"] -= row.pop("failed_generation")
    return row


def test_steps_that_are_carried_out_twice_change_nothing(
    scenario: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    once = scenario()
    assert (once["outcome"], once["attempts"], once["source"]) == ("recovered", 1, "durable")
    how = dict(recovering._HANDLERS)

    def twice(kind: type[Any]) -> Callable[..., bool]:
        def carry_out(*args: Any) -> bool:
            how[kind](*args)
            return how[kind](*args)

        return carry_out

    monkeypatch.setattr(recovering, "_HANDLERS", {kind: twice(kind) for kind in how})
    assert scenario() == once


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_platform_stopped_between_any_steps_recovers_the_same(
    scenario: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    how = dict(recovering._HANDLERS)
    carried_out: list[str] = []
    drop_at: Sequence[int] = ()

    def stopping(kind: type[Any]) -> Callable[..., bool]:
        def carry_out(*args: Any) -> bool:
            carried_out.append(kind.__name__)
            if len(carried_out) in drop_at:
                raise Dropped  # rolls back this pass's changes
            return how[kind](*args)

        return carry_out

    monkeypatch.setattr(recovering, "_HANDLERS", {kind: stopping(kind) for kind in how})
    undisturbed = scenario()
    steps = len(carried_out)
    assert {"MoveTo", "BeginAnew"} <= set(carried_out)
    for number in range(1, steps + 1, every):
        carried_out.clear()
        drop_at = (number,)
        assert scenario() == undisturbed, f"stopped at step {number}"


def test_error_in_one_recovery_does_not_stop_the_job(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)

    def broken(*args: Any) -> None:
        raise ValueError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(recovering, "recovery_rows", broken)
        fail(here, job)
        go_on(time, here, other)
        assert Job.objects.get(pk=job.pk).state == JobState.RUNNING
        assert only_recovery(job).outcome == RecoveryOutcome.OPEN
    leases.reconcile()
    assert only_recovery(job).outcome == RecoveryOutcome.RECOVERED
