"""Killed processes come back, and the jobs with them: none lost, none trained twice at once, none promised
twice."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from launch import Platform
from launch.running import RunningProcess
from punctual.client import Client, Job
from scheduling.services.snapshots.planner_lease import LEASE
from tests.end_to_end.conftest import EXAMPLES, GLOBAL_BATCH_SIZE, nothing_is_wrong, wait_for, wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

Rows = Callable[..., list[dict[str, Any]]]
CHECKPOINT_SECONDS = 5.0
#: On a slow machine copies into memory may be as rare as checkpoints every few seconds.
RARELY_SECONDS = 300.0
#: Long enough to outlive every kill; the job is cancelled at the end.
ENDLESS = 100_000
#: The longest time until another planner has taken over a killed one's work.
PATIENCE_SECONDS = 3 * LEASE.total_seconds()


@pytest.fixture
def job(person: Client, rows: Rows) -> Iterator[Job]:
    """Return a job in the middle of its run, on all GPUs, with at least one checkpoint."""
    with in_the_middle_of_its_run(person, rows, CHECKPOINT_SECONDS) as running:
        wait_until(running.checkpoints, "a first checkpoint", seconds=60)
        yield running


@pytest.fixture
def job_between_checkpoints(person: Client, rows: Rows) -> Iterator[Job]:
    """Return a job in the middle of its run, on all GPUs, with time until its next checkpoint."""
    with in_the_middle_of_its_run(person, rows, RARELY_SECONDS) as running:
        yield running


@contextmanager
def in_the_middle_of_its_run(person: Client, rows: Rows, checkpoint_seconds: float) -> Iterator[Job]:
    running = submit(person, "survivor", ENDLESS, checkpoint_seconds=checkpoint_seconds)
    wait_for(
        running, lambda job: job.state == "running" and job.iterations_done > 10, "training", seconds=180
    )
    try:
        yield running
    finally:
        with suppress(Exception):
            running.cancel()
        nothing_is_wrong(rows)
        wait_until(
            lambda: not rows("select 1 from scheduling_assignment where state <> 'released'"),
            "GPUs are free",
            seconds=90,
        )


def submit(
    person: Client,
    name: str,
    iterations: int,
    deadline: float | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Job:
    return person.submit(
        EXAMPLES / "image_classifier.py",
        name=name,
        batch_size=GLOBAL_BATCH_SIZE,
        max_iterations=iterations,
        deadline=deadline,
        checkpoint_seconds=checkpoint_seconds,
        # Earlier tests may have given this person another project.
        project="demo",
    )


def wait_for_progress(job: Job, *, seconds: float = 120.0) -> None:
    """Wait for the job to progress."""
    reached = job.refresh().iterations_done
    wait_for(
        job,
        lambda job: job.state == "running" and job.iterations_done > reached + 5,
        "goes on",
        seconds=seconds,
    )


def is_decided(person: Client, name: str) -> None:
    """Check that a newcomer gets its verdict, so that the planner works."""
    newcomer = submit(person, name, 20, 3600.0)
    newcomer.wait_for_verdict(timeout_seconds=60)
    assert newcomer.state in ("admitted", "running"), newcomer.verdict
    newcomer.cancel()


def live_generation(rows: Rows, job: Job) -> int | None:
    generations = rows(
        "select number from scheduling_generation where job_id = %s and purpose = 'training' and state = "
        "'live'",
        job.id,
    )
    return generations[0]["number"] if generations else None


def training_generations(rows: Rows, job: Job) -> list[dict[str, Any]]:
    """Return all training generations of the job in order."""
    return rows(
        "select number, state from scheduling_generation where job_id = %s and purpose = 'training' order by "
        "number",
        job.id,
    )


def stored_iteration(job: Job) -> int:
    return max((checkpoint.iteration for checkpoint in job.checkpoints()), default=0)


def iteration_in_memory(rows: Rows, job: Job) -> int:
    """Return the iteration of the state that servers last reported as complete."""
    held = [
        int(entry["iteration"])
        for agent in rows("select memory_store from cluster_agent")
        for entry in agent["memory_store"].get("holdings", ())
        if entry["job"] == job.id
    ]
    return min(held, default=-1)


def copied_iteration(rows: Rows, job: Job) -> int:
    """Return the iteration of the state of all ranks that every server last reported; -1 while copies are
    late."""
    live = live_generation(rows, job)
    iterations = []
    for agent in rows("select memory_store from cluster_agent"):
        held = [
            entry
            for entry in agent["memory_store"].get("holdings", ())
            if (entry["job"], entry["generation"]) == (job.id, live)
        ]
        late = any(entry["copies"] < entry["wanted_copies"] for entry in held)
        whole = len(held) == job.refresh().gpus and not late
        iterations.append(min(int(entry["iteration"]) for entry in held) if whole else -1)
    return min(iterations, default=-1)


def epoch(rows: Rows) -> int:
    return int(rows("select epoch from cluster_cluster")[0]["epoch"])


def worker_pids(platform: Platform, agent: str) -> list[int]:
    """Return the live launchers and workers of an agent."""
    pids = []
    for file in (platform.settings.data / "agents" / agent / "workers").glob("*/launcher.json"):
        launcher = json.loads(file.read_text())
        pids += [launcher["pid"], launcher["worker_pid"]]
    return [pid for pid in pids if pid and alive(pid)]


def workers_of(platform: Platform, job: Job) -> list[int]:
    """Return the job's live workers on all servers."""
    pids = [
        json.loads((file.parent / "launcher.json").read_text())["worker_pid"]
        for file in (platform.settings.data / "agents").glob("*/workers/*/assignment.json")
        if json.loads(file.read_text())["job"] == job.id
    ]
    return sorted(pid for pid in pids if alive(pid))


def kill_a_worker(platform: Platform, job: Job) -> None:
    """Kill one of the job's workers and nothing else."""
    os.kill(workers_of(platform, job)[0], signal.SIGKILL)


def alive(pid: int) -> bool:
    """Return whether the process runs; a zombie of a frozen parent does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_and_wait(platform: Platform, name: str) -> RunningProcess:
    before = platform.process(name)
    before.kill()
    return platform.wait_restarted(before)


def another_planner(rows: Rows, before: int) -> None:
    """Wait until another planner plans under a newer epoch, which fences the previous planner."""
    wait_until(lambda: epoch(rows) > before, "another planner", seconds=PATIENCE_SECONDS)


def test_the_platform_survives_a_kill_of_the_planners_child(
    running_platform: Platform, person: Client, rows: Rows, job: Job
) -> None:
    before, generation = epoch(rows), live_generation(rows, job)
    (child,) = running_platform.process("celery-planner").children
    os.kill(child, signal.SIGKILL)
    another_planner(rows, before)
    wait_for_progress(job)
    assert training_generations(rows, job)[-1]["number"] == generation, "what trains needs no other one"
    is_decided(person, "after the planner's child")


def test_the_platform_survives_a_kill_of_the_planners_parent(
    running_platform: Platform, person: Client, rows: Rows, job: Job
) -> None:
    before, generation = epoch(rows), live_generation(rows, job)
    kill_and_wait(running_platform, "celery-planner")
    another_planner(rows, before)
    wait_for_progress(job)
    assert training_generations(rows, job)[-1]["number"] == generation, "what trains needs no other one"
    is_decided(person, "after the planner")


@pytest.mark.parametrize("planned", [False, True], ids=["before it plans", "after it planned"])
def test_a_recovery_survives_the_planners_kill_with_one_generation(
    running_platform: Platform, rows: Rows, job: Job, planned: bool
) -> None:
    """Not planned: the planner is frozen before the failure, so it has not responded when it is killed.
    Planned: its generation is being started, and the next planner must leave it alone."""
    before, failed = epoch(rows), live_generation(rows, job)
    planner = running_platform.process("celery-planner")
    (child,) = planner.children
    if not planned:
        os.kill(child, signal.SIGSTOP)
    kill_a_worker(running_platform, job)

    def under_way() -> bool:
        recoveries = [
            recovery
            for recovery in job.recoveries()
            if recovery.failed_generation == failed and recovery.outcome == "open"
        ]
        return bool(recoveries) and (recoveries[0].recovering_generation is not None) == planned

    wait_until(under_way, "a recovery is under way", seconds=60)
    killed_at = time.monotonic()
    if planned:
        planner.kill()
    os.kill(child, signal.SIGKILL)
    assert live_generation(rows, job) is None, "it was killed before training went on"
    wait_until(lambda: live_generation(rows, job), "it trains again", seconds=PATIENCE_SECONDS)
    another_planner(rows, before)
    assert time.monotonic() - killed_at <= PATIENCE_SECONDS
    wait_for_progress(job)
    begun = [
        generation for generation in training_generations(rows, job) if generation["number"] > (failed or 0)
    ]
    assert [one["state"] for one in begun] == ["live"], f"one generation answers one failure: {begun}"
    told = next(one for one in job.recoveries() if one.failed_generation == failed)
    assert (told.outcome, told.recovering_generation) == ("recovered", begun[0]["number"])


def test_the_platform_survives_a_kill_of_the_beat(running_platform: Platform, rows: Rows, job: Job) -> None:
    kill_and_wait(running_platform, "beat")
    looked = rows("select leases_checked_at from cluster_cluster")[0]["leases_checked_at"]
    wait_until(
        lambda: rows("select leases_checked_at from cluster_cluster")[0]["leases_checked_at"] > looked,
        "leases are looked at again",
        seconds=60,
    )
    wait_for_progress(job)


def test_the_platform_survives_a_kill_of_the_web_server(
    running_platform: Platform, person: Client, job: Job
) -> None:
    web = running_platform.process("web")
    for pid in [*web.children, web.pid]:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    running_platform.wait_restarted(web)
    wait_for_progress(job)
    is_decided(person, "after the web server")


def test_workers_train_on_when_their_agent_is_killed(
    running_platform: Platform, rows: Rows, job: Job
) -> None:
    generation = live_generation(rows, job)
    workers = workers_of(running_platform, job)
    assert workers
    kill_and_wait(running_platform, "agent-node-1")
    wait_for_progress(job)
    assert live_generation(rows, job) == generation, "nobody noticed"
    assert workers_of(running_platform, job) == workers


def test_a_job_resumes_from_memory_after_a_workers_kill(
    running_platform: Platform, rows: Rows, job_between_checkpoints: Job
) -> None:
    job = job_between_checkpoints
    stored = stored_iteration(job)
    wait_until(
        lambda: iteration_in_memory(rows, job) > stored_iteration(job),
        "memory is ahead of storage",
        seconds=60,
    )
    generation = live_generation(rows, job)
    kill_a_worker(running_platform, job)
    wait_until(lambda: live_generation(rows, job) not in (None, generation), "it trains again", seconds=120)
    (found,) = rows(
        "select start ->> 'from' as source, start_iteration from scheduling_generation where job_id = %s and "
        "state = 'live'",
        job.id,
    )
    assert found["source"] == "memory"
    # Iterations here are short: copying after each would exceed its share of the time.
    assert found["start_iteration"] > stored, "it resumes after the durable state"
    told = next(recovery for recovery in job.recoveries() if recovery.failed_generation == generation)
    assert (told.kind, told.outcome, told.source) == ("software", "recovered", "own_memory")
    assert told.iterations_lost is not None
    seconds = {span["phase"]: span["seconds"] for span in told.phases}
    assert {"detected", "frozen", "resourced", "loading"} <= set(seconds), "each was seen"
    assert sum(seconds.values()) == pytest.approx(told.down_seconds, abs=0.01)


def test_a_job_resumes_from_a_peers_memory_after_its_server_dies(
    running_platform: Platform, rows: Rows, job_between_checkpoints: Job
) -> None:
    job = job_between_checkpoints
    wait_until(
        lambda: copied_iteration(rows, job) > stored_iteration(job),
        "both servers hold all of its state, and it is ahead of storage",
        seconds=90,
    )
    stored, copied = stored_iteration(job), copied_iteration(rows, job)
    generation = live_generation(rows, job)
    # Everything on the server is dead, and nothing is restarted because its agent is frozen.
    agent = running_platform.process("agent-node-1")
    store = int((running_platform.settings.data / "agents" / "node-1" / "memory" / "lock").read_text())
    agent.signal(signal.SIGSTOP)
    try:
        for pid in [*worker_pids(running_platform, "node-1"), store]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: live_generation(rows, job) not in (None, generation), "it trains elsewhere", seconds=150
        )
        (found,) = rows(
            "select start ->> 'from' as source, start_iteration from scheduling_generation where job_id = %s "
            "and state = 'live'",
            job.id,
        )
        assert found["source"] == "memory"
        assert found["start_iteration"] >= copied > stored
        on = rows(
            "select distinct s.name from scheduling_assignment a join cluster_gpu g on g.id = a.gpu_id join "
            "cluster_server s on s.id = g.server_id where a.job_id = %s and a.state = 'held'",
            job.id,
        )
        assert [row["name"] for row in on] == ["node-2"]
        told = next(recovery for recovery in job.recoveries() if recovery.failed_generation == generation)
        assert told.outcome == "recovered"
        assert {source["source"] for source in told.sources} <= {"own_memory", "peer_memory"}
        assert {one["server"] for one in told.sources} == {"node-2"}
        wait_for_progress(job)
    finally:
        agent.signal(signal.SIGCONT)
    wait_until(
        lambda: rows("select 1 from cluster_server where name = 'node-1' and state = 'up'"),
        "the server is back",
        seconds=60,
    )


def test_a_job_recovers_when_an_agent_dies_with_its_workers(
    running_platform: Platform, rows: Rows, job: Job
) -> None:
    before = job.refresh().iterations_done
    stored = max(checkpoint.iteration for checkpoint in job.checkpoints())
    agent = running_platform.process("agent-node-1")
    agent.kill()
    for pid in worker_pids(running_platform, "node-1"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    running_platform.wait_restarted(agent)
    generation = live_generation(rows, job)
    wait_until(
        lambda: (live_generation(rows, job) or 0) > (generation or 0) or live_generation(rows, job) is None,
        "the loss is noticed",
        seconds=60,
    )
    wait_for_progress(job, seconds=180)
    resumed = rows(
        "select start_iteration from scheduling_generation where job_id = %s and live_at is not null order "
        "by number desc limit 1",
        job.id,
    )[0]["start_iteration"]
    assert resumed >= stored, f"was at {before}, had stored {stored}, went on from {resumed}"


def test_the_platform_survives_a_broker_that_loses_all_messages(
    running_platform: Platform, person: Client, job: Job
) -> None:
    kill_and_wait(running_platform, "valkey")
    wait_for_progress(job)
    is_decided(person, "after the broker")


def test_a_frozen_agent_is_fenced_and_its_job_moves(running_platform: Platform, rows: Rows, job: Job) -> None:
    agent = running_platform.process("agent-node-1")
    agent.signal(signal.SIGSTOP)
    try:
        wait_until(
            lambda: rows("select 1 from cluster_server where name = 'node-1' and state = 'down'"),
            "the silent server is given up",
            seconds=90,
        )
        assert not worker_pids(running_platform, "node-1"), "its workers ended with their lease"
        wait_for_progress(job, seconds=180)
        on = rows(
            "select distinct s.name from scheduling_assignment a join cluster_gpu g on g.id = a.gpu_id join "
            "cluster_server s on s.id = g.server_id where a.job_id = %s and a.state = 'held'",
            job.id,
        )
        assert [row["name"] for row in on] == ["node-2"]
        recovery = job.recoveries()[0]
        assert [server["name"] for server in recovery.lost_servers] == ["node-1"]
        assert recovery.fenced_at is not None
        assert recovery.detected_at is not None
        assert (recovery.kind, recovery.outcome) == ("hardware", "recovered")
        assert recovery.fenced_at > recovery.detected_at, "suspect first, then fenced"
    finally:
        agent.signal(signal.SIGCONT)
    wait_until(
        lambda: rows("select 1 from cluster_server where name = 'node-1' and state = 'up'"),
        "the server is back",
        seconds=60,
    )


@pytest.mark.timeout(600)
def test_stopping_everything_loses_at_most_one_checkpoint_period(
    running_platform: Platform, person: Client, rows: Rows, job: Job
) -> None:
    before = job.refresh()
    speed = before.iterations_per_second or 0.0
    running_platform.stop()
    running_platform.start()
    wait_for_progress(job, seconds=240)
    resumed = rows(
        "select start_iteration from scheduling_generation where job_id = %s and live_at is not null order "
        "by number desc limit 1",
        job.id,
    )[0]["start_iteration"]
    # One period, and the reports in flight when the stop came.
    assert resumed >= before.iterations_done - (CHECKPOINT_SECONDS + 2.0) * speed
