"""Recoveries as rows: opened once for each failure, advanced by what agents report, whole after any
restart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from cluster.models import Agent, Cluster, Server
from recovery.life_cycle.facts import PHASES
from scheduling.choices import (
    GenerationState,
    JobState,
    ProtectionState,
    RecoveryKind,
    RecoveryOutcome,
    StateSource,
)
from scheduling.models import Generation, Incident, Job, JobEvent, JobProtection, Recovery
from scheduling.selectors.memory_states import memory_state
from scheduling.services import housekeeping, leases, recovering
from scheduling.services.drain import server_drain
from scheduling.services.jobs import job_cancel, job_pause
from scheduling.services.leases import expire_leases, reconcile
from scheduling.services.planning import run_planner
from scheduling.services.protection_watch import LONGEST_SECONDS, SHORTEST_SECONDS, recovery_seconds
from scheduling.services.records import lock_cluster
from scheduling.services.recoveries import begin_recovery, sources_of
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.control_plane.simulated_time import SimulatedTime
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
Nodes = tuple[SimulatedAgent, SimulatedAgent]
#: Between two looks at leases, in simulated time.
LOOK_SECONDS = 4.0
PHASE_TIMES = [f"{phase.value}_at" for phase in PHASES]


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> SimulatedTime:
    return SimulatedTime(monkeypatch)


@pytest.fixture
def nodes(time: SimulatedTime, cluster: Cluster) -> Nodes:
    return SimulatedAgent.enrol("node-1", 4, SPEED), SimulatedAgent.enrol("node-2", 4, SPEED)


def train_on(submit: Submit, here: SimulatedAgent, other: SimulatedAgent, durable: int = 0) -> Job:
    """A job that trains on one server alone, whose state of an iteration is durable, if wanted."""
    Server.objects.filter(pk=other.agent.server_id).update(drain="drained")
    job = submit("best_effort", iterations=100_000)
    settle(here, other)
    Server.objects.filter(pk=other.agent.server_id).update(drain="none")
    worker = here.rank_zero(job.pk)
    assert worker is not None
    if durable:
        here.state_stored(worker, durable)
        here.report()
    reached(job, durable + 7)
    return Job.objects.get(pk=job.pk)


def go_on(time: SimulatedTime, *agents: SimulatedAgent, rounds: int = 8) -> None:
    """Let planner and agents talk while slots go by."""
    for _ in range(rounds):
        time.turn(0.1)
        run_planner("test")
        for agent in agents:
            agent.obey()
            agent.report()
        reconcile()


def reached(job: Job, iteration: int) -> None:
    Job.objects.filter(pk=job.pk).update(iterations_done=iteration, iterations_per_second=10.0)


def memory_of(agent: SimulatedAgent, job: Job, iteration: int) -> dict[str, Any]:
    """What a server's store holds of the job's ranks there."""
    live = job.generations.get(state=GenerationState.LIVE)
    holdings = [
        {
            "job": job.pk, "generation": live.number, "rank": rank, "iteration": iteration, "bytes": 9,
            "reserved_bytes": 18, "age_seconds": 0.1,
        }
        for rank in range(live.world_size)
        if live.assignments.filter(rank=rank, gpu__server=agent.agent.server_id).exists()
    ]  # fmt: skip
    return {"memory_store": {"used_bytes": 18, "limit_bytes": 1_000_000, "holdings": holdings}}


def fail(agent: SimulatedAgent, job: Job, reason: str = "killed") -> None:
    """Rank 0's agent reports that the worker has ended."""
    worker = agent.rank_zero(job.pk)
    assert worker is not None
    agent.event(worker, "failed", reason=reason, message="signal 9", traceback="")
    agent.report()


def look(cluster: Cluster, *alive: SimulatedAgent) -> None:
    for agent in alive:
        agent.report()
    expire_leases()


def lose(cluster: Cluster, time: SimulatedTime, *alive: SimulatedAgent) -> datetime:
    """All others fall silent; looks and the living agents' reports go on until they are given up. Returns
    when they were found silent."""
    suspected_at = None
    for _ in range(round((cluster.fence_seconds + cluster.fence_margin_seconds) / LOOK_SECONDS) + 2):
        time.turn(LOOK_SECONDS)
        look(cluster, *alive)
        if suspected_at is None and Server.objects.filter(state="suspect").exists():
            suspected_at = timezone.now()
    assert suspected_at is not None
    return suspected_at


def only_recovery(job: Job) -> Recovery:
    return Recovery.objects.get(job=job)


def assert_phases_ascend(found: Recovery) -> None:
    times = [getattr(found, name) for name in PHASE_TIMES]
    known = [one for one in times if one is not None]
    assert known == sorted(known)
    assert times[-1] is not None
    assert found.ended_at == found.running_at


def test_a_killed_workers_job_recovers_from_the_memory_of_its_server(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other, durable=20)
    here.report(**memory_of(here, job, 25))
    live = job.generations.get(state=GenerationState.LIVE)
    time.turn(5.0)
    told_at = timezone.now()
    fail(here, job)
    opened = only_recovery(job)
    assert (opened.kind, opened.outcome, opened.phase) == ("software", "open", "detected")
    assert (opened.failed_generation, opened.iteration_reached) == (live.number, 27)
    assert opened.detected_at == told_at
    assert JobEvent.objects.filter(job=job, kind="suspended", message__contains="iteration 25").exists()
    time.turn(3.0)
    # The other server's GPUs are not to be used: the state is here.
    Server.objects.filter(pk=other.agent.server_id).update(drain="drained")
    settle(here)
    found = only_recovery(job)
    assert (found.outcome, found.phase) == ("recovered", "running")
    assert found.recovering_generation == live.number + 1
    assert {one["source"] for one in found.sources} == {StateSource.OWN_MEMORY}
    assert all(one["holders"] == [here.agent.server_id] for one in found.sources)
    assert (found.source, found.iteration_resumed, found.iterations_lost()) == ("own_memory", 25, 2)
    assert found.lost_work_seconds() == pytest.approx(0.2)
    assert (found.lost_servers, found.fenced_at, found.attempts, found.losses) == ([], None, 0, 1)
    assert found.down_seconds(timezone.now()) == pytest.approx(3.0)
    assert_phases_ascend(found)
    said = JobEvent.objects.get(job=job, kind="recovered")
    assert "3.0 s after the failure was noticed, from iteration 25" in said.message


def test_a_lost_server_is_detected_when_it_is_silent_and_shown_beside_its_fence(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other, durable=20)
    silent_at = lose(cluster, time, other)
    settle(other)
    found = only_recovery(job)
    assert (found.kind, found.outcome) == (RecoveryKind.HARDWARE, RecoveryOutcome.RECOVERED)
    assert [one["name"] for one in found.lost_servers] == ["node-1"]
    failed = job.generations.get(number=found.failed_generation)
    assert found.lost_ranks == list(range(failed.world_size))
    assert found.detected_at == silent_at
    assert found.fenced_at is not None
    assert (found.fenced_at - silent_at).total_seconds() > cluster.fence_seconds - cluster.suspect_seconds - 1
    assert found.frozen_at is not None
    assert found.frozen_at >= found.fenced_at
    assert (found.source, found.iteration_resumed, found.iterations_lost()) == ("durable", 20, 7)
    assert_phases_ascend(found)


def both_train(submit: Submit, nodes: Nodes) -> Job:
    """A job over two servers."""
    job = submit("best_effort", iterations=100_000, batch=64)
    settle(*nodes)
    live = job.generations.get(state=GenerationState.LIVE)
    servers = set(live.assignments.values_list("gpu__server", flat=True))
    assert len(servers) == 2, "it takes all GPUs"
    reached(job, 50)
    return job


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
    found = only_recovery(job)
    assert {one["name"] for one in found.lost_servers} == {"node-1", "node-2"}
    assert found.lost_ranks == list(range(job.generations.get(number=found.failed_generation).world_size))
    assert found.losses == losses
    assert Recovery.objects.count() == 1


def test_a_peer_that_noticed_first_is_the_detection_and_the_server_is_named_later(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    first, second = nodes
    job = both_train(submit, nodes)
    survivor, lost = (second, first)
    worker = next(one for (owner, _, _), one in survivor.workers.items() if owner == job.pk)
    told_at = timezone.now()
    survivor.event(worker, "failed", rank=worker.rank, reason="peer_lost", message="reset", traceback="")
    survivor.report()
    assert only_recovery(job).kind == RecoveryKind.SOFTWARE
    lose(cluster, time, survivor)
    found = only_recovery(job)
    assert (found.kind, [one["name"] for one in found.lost_servers]) == ("hardware", [lost.agent.server.name])
    assert (found.detected_at, found.losses) == (told_at, 1)
    settle(survivor)
    assert only_recovery(job).outcome == RecoveryOutcome.RECOVERED


def test_a_server_that_is_given_up_after_training_went_on_makes_it_a_recovery_of_hardware(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    lost, survivor = nodes
    job = both_train(submit, nodes)
    worker = next(one for (owner, _, _), one in survivor.workers.items() if owner == job.pk)
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
    assert [one["name"] for one in after.lost_servers] == ["node-1"]


def test_a_start_that_fails_is_an_attempt_and_the_recovery_begins_anew(
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
    found = only_recovery(job)
    assert (found.outcome, found.attempts, found.source) == ("recovered", 1, "durable")
    assert found.iterations_lost() == 7
    assert_phases_ascend(found)


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
    found = only_recovery(job)
    assert (found.outcome, found.running_at) == (RecoveryOutcome.BROKEN_OFF, None)
    assert how in found.broken_off_because
    assert found.ended_at is not None


def test_a_server_that_is_emptied_is_an_announced_failure_that_loses_nothing(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    reached(job, 0)
    server_drain(server=here.agent.server, actor=UserFactory.create(is_staff=True), reason="repair")
    go_on(time, here, other, rounds=12)
    found = only_recovery(job)
    assert (found.kind, found.outcome, found.iterations_lost()) == ("announced", "recovered", 0)
    assert [one["name"] for one in found.lost_servers] == ["node-1"]
    assert found.fenced_at is None
    assert not Recovery.objects.exclude(kind=RecoveryKind.ANNOUNCED).exists()


def test_a_server_that_dies_while_it_is_emptied_was_lost_and_not_announced(
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
    found = only_recovery(job)
    assert (found.kind, found.outcome) == (RecoveryKind.HARDWARE, RecoveryOutcome.RECOVERED)
    (lost,) = found.lost_servers
    assert (lost["name"], lost["silent_at"]) == ("node-1", silent_at.isoformat())
    assert found.lost_ranks


def test_a_job_that_only_grows_has_no_recovery(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    go_on(time, here, other)
    assert job.generations.count() > 1
    assert not Recovery.objects.exists()


def test_two_sweepers_open_one_recovery(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    fail(here, job)
    found = only_recovery(job)
    failed = job.generations.get(number=found.failed_generation)
    with transaction.atomic():
        lock_cluster(cluster.pk)
        assert begin_recovery(job, failed, "again", timezone.now()).pk == found.pk
    found.pk = None
    with pytest.raises(IntegrityError, match="recovery_once_per_generation|job_recovers_once_at_a_time"):
        found.save(force_insert=True)


def test_each_rank_names_its_own_server_a_peers_or_storage() -> None:
    memory = {
        "from": "memory",
        "shards": [
            {"reader": 0, "holders": [{"tier": "memory", "server": 7}, {"tier": "memory", "server": 8}]},
            {"reader": 1, "holders": [{"tier": "memory", "server": 7}]},
        ],
    }  # fmt: skip
    assert [one["source"] for one in sources_of(memory, [7, 8, 9])] == [
        "own_memory", "peer_memory", "peer_memory",
    ]  # fmt: skip
    durable = {
        "from": "checkpoint",
        "shards": [{"id": 0, "reader": 0, "holders": [{"tier": "store", "uri": "x"}]}],
    }
    assert [one["source"] for one in sources_of(durable, [7, 8])] == ["durable", "durable"]
    assert [one["source"] for one in sources_of({"from": "nothing"}, [7])] == ["none"]


# A platform that is stopped anywhere -------------------------------------------------------------------


class Dropped(Exception):
    """The process is gone."""


@pytest.fixture
def scenario(cluster: Cluster, submit: Submit) -> Callable[[], dict[str, Any]]:
    """A server is lost, the first start elsewhere fails, the second trains. Gives the recovery's row, its
    times in seconds since the failure. Clock and agents are made anew each time."""

    hours = itertools.count()

    def play() -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            time = SimulatedTime(patch)
            time.turn(3600.0 * next(hours))  # the last course's rows are of the past
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


def since(found: Recovery, began: datetime) -> dict[str, Any]:
    row = {
        name: value
        for name, value in found.__dict__.items()
        if not name.startswith("_") and name not in ("id", "job_id", "lost_servers", "sources")
    }
    row["ranks"] = [(one["rank"], one["source"]) for one in found.sources]
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
    how = dict(recovering._HOW)

    def twice(kind: type[Any]) -> Callable[..., bool]:
        def carry_out(*args: Any) -> bool:
            how[kind](*args)
            return how[kind](*args)

        return carry_out

    monkeypatch.setattr(recovering, "_HOW", {kind: twice(kind) for kind in how})
    assert scenario() == once


def test_a_platform_that_is_stopped_between_any_two_steps_recovers_the_same(
    scenario: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    how = dict(recovering._HOW)
    carried_out: list[str] = []
    drop_at: Sequence[int] = ()

    def stopping(kind: type[Any]) -> Callable[..., bool]:
        def carry_out(*args: Any) -> bool:
            carried_out.append(kind.__name__)
            if len(carried_out) in drop_at:
                raise Dropped  # after which nothing of this look is kept
            return how[kind](*args)

        return carry_out

    monkeypatch.setattr(recovering, "_HOW", {kind: stopping(kind) for kind in how})
    undisturbed = scenario()
    steps = len(carried_out)
    assert {"MoveTo", "BeginAnew"} <= set(carried_out)
    for number in range(1, steps + 1):
        carried_out.clear()
        drop_at = (number,)
        assert scenario() == undisturbed, f"stopped at step {number}"


def test_a_recovery_that_cannot_be_looked_at_stops_nobody(
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


# What takes too long -----------------------------------------------------------------------------------


def test_a_job_that_is_not_recovered_after_two_recovery_times_is_an_incident_until_it_trains(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    here, other = nodes
    job = train_on(submit, here, other)
    fail(here, job)
    Server.objects.update(drain="drained")
    patience = 2 * recovery_seconds(cluster)
    assert patience > 2 * cluster.fence_seconds
    time.turn(patience - 1.0)
    reconcile()
    late = Incident.objects.filter(kind=Incident.Kind.UNRECOVERED, job=job)
    assert not late.exists()
    time.turn(2.0)
    reconcile()
    reconcile()
    told = late.get()
    assert (told.resolved_at, told.count) == (None, 1)
    assert "waits for GPUs" in told.message
    run_planner("test")
    assert late.filter(resolved_at=None).exists(), "being planned does not make it train"
    Server.objects.update(drain="none")
    go_on(time, here, other)
    assert not late.filter(resolved_at=None).exists()


def test_recoveries_that_were_quick_make_the_platform_impatient(
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


def holding(job: Job, server: Server, rank: int, iteration: int, **more: int) -> None:
    """A server's store keeps a rank's shard."""
    live = job.generations.get(state=GenerationState.LIVE)
    agent = Agent.objects.get(server=server)
    agent.memory_store.setdefault("holdings", []).append(
        {
            "job": job.pk, "generation": live.number, "rank": rank, "iteration": iteration, "bytes": 10,
            "completed_at": timezone.now().isoformat(), **more,
        }
    )  # fmt: skip
    agent.save(update_fields=["memory_store"])


def test_copies_that_were_ordered_and_lack_for_too_long_are_an_incident(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    first, second = nodes
    job = both_train(submit, nodes)
    ranks = job.generations.get(state=GenerationState.LIVE).world_size
    for rank in range(ranks):
        holding(job, first.agent.server, rank, 50, copies=1 if rank == 2 else 2, wanted_copies=2)
    reconcile()
    assert JobProtection.objects.get(job=job).state == ProtectionState.DEGRADED
    time.turn(2 * recovery_seconds(cluster) + 1.0)
    Agent.objects.update(last_report_at=timezone.now())
    reconcile()
    told = Incident.objects.get(kind=Incident.Kind.UNPROTECTED)
    assert (told.job_id, "ranks 2 have" in told.message) == (job.pk, True)
    Agent.objects.update(memory_store={})
    for rank in range(ranks):
        holding(job, first.agent.server, rank, 60, copies=2, wanted_copies=2)
        holding(job, second.agent.server, rank, 60)
    reconcile()
    told.refresh_from_db()
    assert told.resolved_at is not None
    assert JobProtection.objects.get(job=job).state == ProtectionState.FULL


def test_what_each_servers_death_would_cost(
    time: SimulatedTime, cluster: Cluster, nodes: Nodes, submit: Submit
) -> None:
    first, second = nodes
    job = both_train(submit, nodes)
    live = job.generations.get(state=GenerationState.LIVE)
    here = {"node-1": first.agent.server, "node-2": second.agent.server}
    own = {one.rank: one.gpu.server for one in live.assignments.select_related("gpu__server")}
    for rank in range(live.world_size):
        holding(job, own[rank], rank, 49)
    state = memory_state(Job.objects.select_related("checkpoint").get(pk=job.pk))
    assert state is not None
    assert state.in_memory is not None
    assert (state.in_memory.iteration, state.committed_lag()) == (49, 1)
    assert [(one.name, len(one.ranks)) for one in state.holders()] == [("node-1", 4), ("node-2", 4)]
    # Each keeps its own ranks' state alone: with one of them the point is gone.
    assert state.protection == ProtectionState.DEGRADED
    assert {(one.iterations, one.seconds, one.source) for one in state.losses()} == {(50, 5.0, "none")}
    for rank in range(live.world_size):
        peer = here["node-2"] if own[rank].name == "node-1" else here["node-1"]
        holding(job, peer, rank, 48)
    state = memory_state(Job.objects.select_related("checkpoint").get(pk=job.pk))
    assert state is not None
    assert state.protection == ProtectionState.FULL
    assert [(one.iterations, one.source) for one in state.losses()] == [(2, "peer_memory")] * 2


def test_old_recoveries_are_forgotten_and_open_ones_never(
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
    left = Recovery.objects.order_by("pk").values_list("failed_generation", flat=True)
    assert list(left) == [103, 104, 99]
