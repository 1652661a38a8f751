"""Failures between control plane and agents, and the guarantees that must still hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from cluster.choices import ServerState
from cluster.models import Agent, Cluster, Gpu, Server
from scheduling.choices import AssignmentState, GenerationState, JobState
from scheduling.models import Assignment, Checkpoint, Decision, Generation, Job, PlannerPass, Worker
from scheduling.services.agents import leases, reported_workers
from scheduling.services.agents.leases import expire_leases, reconcile
from scheduling.services.agents.reports import Fenced
from scheduling.services.generations import lifecycle
from scheduling.services.generations.generations import create_generation
from scheduling.services.planning import planning
from scheduling.services.rows.records import lock_cluster, planning_fact_changed
from scheduling.services.snapshots import planner_lease
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


@pytest.fixture
def nodes(cluster: Cluster) -> tuple[SimulatedAgent, SimulatedAgent]:
    return SimulatedAgent.enrol("node-1", 4, SPEED), SimulatedAgent.enrol("node-2", 4, SPEED)


def fall_silent(agent: SimulatedAgent, cluster: Cluster) -> None:
    """Move the agent's last report far into the past, with leases checked all the time."""
    now = timezone.now()
    Agent.objects.filter(pk=agent.agent.pk).update(
        last_report_at=now - timedelta(seconds=cluster.fence_seconds + 10)
    )
    Cluster.objects.filter(pk=cluster.pk).update(leases_checked_at=now, leases_hold_until=None)
    expire_leases()
    Cluster.objects.filter(pk=cluster.pk).update(leases_hold_until=None)
    expire_leases()


def server_state(agent: SimulatedAgent) -> str:
    return Server.objects.get(pk=agent.agent.server_id).state


def running_job(submit: Submit, *agents: SimulatedAgent, iterations: int = 100_000) -> Job:
    job = submit("best_effort", iterations=iterations)
    settle(*agents)
    job.refresh_from_db()
    assert job.state == JobState.RUNNING
    return job


def test_job_of_a_fenced_server_resumes_elsewhere_from_checkpoint(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    first, second = nodes
    Server.objects.filter(name="node-2").update(drain="drained")
    job = running_job(submit, first, second)
    worker = first.rank_zero(job.pk)
    assert worker is not None
    first.state_stored(worker, 40)
    first.report()
    Server.objects.filter(name="node-2").update(drain="none")
    fall_silent(first, cluster)
    assert server_state(first) == ServerState.DOWN
    settle(second)
    job.refresh_from_db()
    live = job.generations.get(state=GenerationState.LIVE)
    assert job.state == JobState.RUNNING
    assert live.start is not None
    assert (live.start["from"], live.start["iteration"]) == ("checkpoint", 40)
    folder = f"/jobs/{job.pk}/checkpoints/{worker.entry['generation']}-40"
    for shard in live.start["shards"]:
        (holder,) = shard["holders"]
        assert holder["uri"].endswith(f"{folder}/{shard['id']}.pt")
    assert [shard["id"] for shard in live.start["shards"]] == list(range(worker.entry["world_size"]))
    assert {assignment.gpu.server.name for assignment in live.assignments.all()} == {"node-2"}


def test_error_in_one_job_does_not_stop_fencing_of_other_servers(
    cluster: Cluster,
    nodes: tuple[SimulatedAgent, SimulatedAgent],
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(2):
        submit("best_effort", iterations=100_000)
    settle(*nodes)
    broken = running_job(submit, *nodes)
    lose = lifecycle.lose_generation

    def fails(job: Job, *arguments: Any) -> None:
        if job.pk == broken.pk:
            raise KeyError("no such generation")
        lose(job, *arguments)

    now = timezone.now()
    Agent.objects.update(last_report_at=now - timedelta(seconds=cluster.fence_seconds + 10))
    monkeypatch.setattr(leases, "lose_generation", fails)
    for _ in range(2):
        Cluster.objects.filter(pk=cluster.pk).update(leases_checked_at=now, leases_hold_until=None)
        expire_leases()
    assert [server_state(node) for node in nodes] == [ServerState.DOWN] * 2
    assert not Generation.objects.filter(state=GenerationState.LIVE).exists(), "lost with their servers"
    reconcile()
    assert Job.objects.get(pk=broken.pk).state == JobState.SUSPENDED


def test_a_report_is_stored_although_one_job_cannot_be_advanced(
    nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report's entries for other workers are stored, and also those for the job's own."""
    jobs = [submit("best_effort", iterations=100_000) for _ in range(4)]
    settle(*nodes)
    jobs += [submit("best_effort", iterations=100_000) for _ in range(4)]
    planning.run_planner("test")
    for node in nodes:
        node.obey()
    placed = [{job for job, _, _ in node.workers} for node in nodes]
    crowded = placed[0] if len(placed[0]) > len(placed[1]) else placed[1]
    broken = min(crowded)
    assert len(crowded) > 1
    advance = lifecycle.advance

    def fails(job: Job, cluster: Cluster) -> None:
        if job.pk == broken:
            raise KeyError("no such generation")
        advance(job, cluster)

    with monkeypatch.context() as patched:
        patched.setattr(reported_workers, "advance", fails)
        for node in nodes:
            node.report()
    reported = {place: worker.phase for node in nodes for place, worker in node.workers.items()}
    recorded = Worker.objects.filter(gone=False).values_list(
        "generation__job_id", "generation__number", "rank", "phase"
    )
    assert {(job, number, rank): phase for job, number, rank, phase in recorded} == reported
    reconcile()  # advances the job, since its workers may have no further reports
    settle(*nodes)
    assert {Job.objects.get(pk=item.pk).state for item in jobs} == {JobState.RUNNING}


def test_a_fenced_agent_gets_no_work_until_it_reports_an_empty_list(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    first, second = nodes
    running_job(submit, first, second)
    fall_silent(first, cluster)
    if not first.workers:
        first, second = second, first
        fall_silent(first, cluster)
    with pytest.raises(Fenced):
        first.report()
    assert server_state(first) == ServerState.DOWN
    first.workers = {}
    first.report()
    assert server_state(first) == ServerState.UP


def test_late_checkpoint_of_a_retired_generation_is_not_adopted(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    first, second = nodes
    job = running_job(submit, first, second)
    agent = first if first.rank_zero(job.pk) else second
    other = second if agent is first else first
    old_worker = agent.rank_zero(job.pk)
    assert old_worker is not None
    fall_silent(agent, cluster)
    settle(other)
    job.refresh_from_db()
    before = job.checkpoint_id
    agent.workers = {}
    agent.shard_stored(old_worker, 90_000, "periodic")
    agent.event(old_worker, "completed", iteration=100_000, reason="max_iterations", artifacts=[], metrics={})
    agent.report()
    job.refresh_from_db()
    assert job.checkpoint_id == before
    assert job.state == JobState.RUNNING
    assert job.iterations_done < 90_000
    assert Checkpoint.objects.filter(iteration=90_000).exists(), "it is recorded, so that it can be deleted"


def test_silence_short_of_the_fence_only_makes_a_server_suspect(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    first, second = nodes
    job = running_job(submit, first, second)
    generation = job.last_generation
    silent = timezone.now() - timedelta(seconds=cluster.suspect_seconds + 1)
    Agent.objects.update(last_report_at=silent)
    Cluster.objects.update(leases_checked_at=timezone.now())
    expire_leases()
    assert server_state(first) == server_state(second) == ServerState.SUSPECT
    planning.run_planner("test")
    job.refresh_from_db()
    assert (job.state, job.last_generation) == (JobState.RUNNING, generation), "its job stays where it is"
    newcomer = submit("best_effort", iterations=10)
    planning.run_planner("test")
    assert not newcomer.generations.exists(), "no new work on a suspect server"
    first.report()
    second.report()
    assert server_state(first) == ServerState.UP


def test_no_lease_expires_for_a_fence_period_after_an_outage(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    first, _ = nodes
    long_ago = timezone.now() - timedelta(hours=1)
    Agent.objects.update(last_report_at=long_ago)
    Cluster.objects.update(leases_checked_at=long_ago)
    expire_leases()
    expire_leases()
    assert server_state(first) == ServerState.SUSPECT, (
        "the control plane was away for an hour; the agents are not to blame"
    )


def test_a_report_that_comes_twice_changes_nothing(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    first, second = nodes
    job = running_job(submit, first, second)
    agent = first if first.rank_zero(job.pk) else second
    worker = agent.rank_zero(job.pk)
    assert worker is not None
    event = agent.shard_stored(worker, 7, "periodic")
    assert agent.report().acknowledged == [event["id"]]
    lines = job.events.count()
    agent.events = [event]
    assert agent.report().acknowledged == [event["id"]]
    assert job.events.count() == lines


def test_unready_successor_is_given_up_and_the_predecessor_trains_on(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    first, second = nodes
    job = running_job(submit, first, second)
    live = job.generations.get(state=GenerationState.LIVE)
    with transaction.atomic():
        lock_cluster(cluster.pk)
        gpus = [live.assignments.get(rank=0).gpu]
        successor = create_generation(job, gpus, epoch=1, reason="test")
        assert isinstance(successor, Generation)
    Generation.objects.filter(pk=successor.pk).update(step_expires_at=timezone.now() - timedelta(seconds=1))
    reconcile()
    successor.refresh_from_db()
    live.refresh_from_db()
    assert successor.state == GenerationState.RETIRED
    assert (live.state, live.goal) == (GenerationState.LIVE, "train")


def test_repeated_function_error_fails_the_job_with_its_traceback(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    first, second = nodes
    job = running_job(submit, first, second)
    agent = first if first.rank_zero(job.pk) else second
    for _ in range(3):
        worker = agent.rank_zero(job.pk)
        assert worker is not None
        agent.event(worker, "failed", reason="function_error", message="ValueError: no", traceback="line 3")
        agent.report()
        settle(first, second)
        agent = first if first.rank_zero(job.pk) else second
    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert job.failure == {"reason": "function_error", "message": "ValueError: no", "traceback": "line 3"}
    assert not Assignment.objects.exclude(state=AssignmentState.RELEASED).exists()


def test_function_error_counts_even_after_a_lost_peer_report(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    first, second = nodes
    job = running_job(submit, first, second)
    for _ in range(3):
        agent = first if first.rank_zero(job.pk) else second
        worker = agent.rank_zero(job.pk)
        assert worker is not None
        agent.event(worker, "failed", reason="peer_lost", message="connection reset", traceback="")
        agent.event(worker, "failed", reason="function_error", message="ValueError: no", traceback="line 3")
        agent.report()
        settle(first, second)
    job.refresh_from_db()
    assert (job.state, (job.failure or {}).get("reason")) == (JobState.FAILED, "function_error")


def test_a_lost_peer_is_never_the_functions_fault(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    first, second = nodes
    job = running_job(submit, first, second)
    for _ in range(5):
        agent = first if first.rank_zero(job.pk) else second
        worker = agent.rank_zero(job.pk)
        assert worker is not None
        agent.event(worker, "failed", reason="peer_lost", message="connection reset", traceback="")
        agent.report()
        settle(first, second)
    job.refresh_from_db()
    assert job.state == JobState.RUNNING


def test_a_plan_computed_from_outdated_facts_is_not_committed(
    cluster: Cluster,
    nodes: tuple[SimulatedAgent, SimulatedAgent],
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settle(*nodes)
    submit("best_effort")
    compute = planning._compute

    def compute_while_a_fact_changes(*args: Any, **kwargs: Any) -> Any:
        result = compute(*args, **kwargs)
        # A change that locks the cluster's row would wait for the pass; this change does not lock it.
        planning_fact_changed(cluster)
        return result

    Cluster.objects.update(replanned_at=None, next_slot_at=None)
    monkeypatch.setattr(planning, "_compute", compute_while_a_fact_changes)
    decisions = Decision.objects.count()
    with pytest.raises(planner_lease.Moved):
        planning.plan_cluster(cluster.pk, Cluster.objects.get().epoch, "test")
    assert Decision.objects.count() == decisions
    assert Cluster.objects.get().replanned_at is None


def test_facts_changing_during_each_plan_do_not_stop_a_pass(
    cluster: Cluster,
    nodes: tuple[SimulatedAgent, SimulatedAgent],
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a pass was overtaken once, further changes wait for its end."""
    running_job(submit, *nodes)
    job = submit("best_effort")
    compute, changes = planning._compute, []

    def change() -> None:
        with transaction.atomic():
            planning_fact_changed(lock_cluster(cluster.pk))
        connection.close()

    def compute_while_something_changes(*args: Any, **kwargs: Any) -> Any:
        result = compute(*args, **kwargs)
        changes.append(threading.Thread(target=change, daemon=True))
        changes[-1].start()
        # The thread ends at once unless it waits for the end of the pass.
        changes[-1].join(timeout=0.5)
        return result

    Cluster.objects.update(replanned_at=None, next_slot_at=None)
    before = Cluster.objects.get().planning_version
    monkeypatch.setattr(planning, "_compute", compute_while_something_changes)
    assert planning.run_planner("test")
    for thread in changes:
        thread.join()
    job.refresh_from_db()
    assert job.decided_at is not None
    assert len(changes) == 2
    assert PlannerPass.objects.latest("pk").overtaken == 1
    assert Cluster.objects.get().planning_version > before + 2, "the waiting changes were applied"


def test_the_database_refuses_a_gpu_with_two_owners(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    job = running_job(submit, *nodes)
    other = submit("best_effort")
    assignment = job.assignments.filter(state=AssignmentState.HELD).first()
    assert assignment is not None
    rival = Generation.objects.create(
        job=other,
        number=9,
        epoch=1,
        world_size=1,
        master_server=assignment.gpu.server,
        master_port=1,
        secret="x",
    )
    with pytest.raises(IntegrityError, match="gpu_has_one_owner"):
        Assignment.objects.create(
            generation=rival, job=other, gpu=assignment.gpu, rank=0, state=AssignmentState.HELD
        )


def test_the_database_refuses_two_training_generations_of_one_job(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    job = running_job(submit, *nodes)
    live = job.generations.get(state=GenerationState.LIVE)
    live.pk, live.number = None, 77
    with pytest.raises(IntegrityError, match="job_trains_one_generation"):
        live.save(force_insert=True)


def test_the_database_refuses_a_terminal_job_that_holds_a_gpu(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    job = running_job(submit, *nodes)
    # The constraint is checked at the end of the transaction: a terminal state may be written before the GPUs
    # are released.
    with pytest.raises(IntegrityError, match="holds a GPU"):
        Job.objects.filter(pk=job.pk).update(state="cancelled", finished_at=timezone.now())


def test_the_database_refuses_to_bring_a_finished_job_back(
    cluster: Cluster, nodes: object, submit: Submit
) -> None:
    job = submit("best_effort")
    Job.objects.filter(pk=job.pk).update(state="cancelled", finished_at=timezone.now())
    with pytest.raises(IntegrityError, match="which is final"):
        Job.objects.filter(pk=job.pk).update(state="running")


def test_a_gpu_is_free_only_after_an_up_to_date_agent_confirms(
    cluster: Cluster, nodes: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    from scheduling.services.requests.jobs import job_cancel

    first, second = nodes
    job = running_job(submit, first, second)
    job_cancel(job=job, actor=job.owner)
    clearing = Assignment.objects.filter(state=AssignmentState.CLEARING)
    assert clearing.exists()
    silent = [agent for agent in nodes if agent.workers]
    for agent in silent:
        workers, agent.workers = agent.workers, {}
        agent.report()
        agent.workers = workers
    assert clearing.exists(), "an agent that has not seen the new desired state may still start the worker"
    settle(first, second)
    assert not clearing.exists()
    assert Gpu.objects.count() == 8
