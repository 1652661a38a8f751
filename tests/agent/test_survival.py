"""Deaths, freezes, cuts and fences: workers outlive their agent, but never their lease."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import RunningAgent, process_alive, wait_until
from tests.agent.fake_control_plane import FakeControlPlane, generation
from workers.agent.machine.clock import boot_time_seconds
from workers.agent.processes.worker_processes import write_lease


def training_worker(agent: RunningAgent, plane: FakeControlPlane, **changes: Any) -> int:
    """Start a training worker; return its process id."""
    agent.start()
    plane.want(generation(**changes))
    number = int(str(changes.get("number", 1)))
    worker = wait_until(lambda: plane.worker(number=number), "the worker is reported")
    wait_until(lambda: plane.phase(number=number) == "training", "the worker trains")
    return next(int(item["worker_pid"]) for item in agent.launchers() if item["folder"].name == worker["key"])


def end_lease(agent: RunningAgent) -> None:
    """End the lease of all workers now, as if it had not been renewed."""
    for launcher in agent.launchers():
        write_lease(launcher["folder"], 0.0)


def wait_reports(plane: FakeControlPlane, count: int) -> None:
    """Wait until the agent has reported a few times more."""
    before = len(plane.reports)
    wait_until(lambda: len(plane.reports) >= before + count, "the agent reports on")


def test_a_killed_agents_worker_trains_on_and_is_adopted_again(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    worker = training_worker(agent, plane)
    agent.kill()
    before = plane.worker()
    sequence = plane.reports[-1]["sequence"]
    assert process_alive(worker)
    agent.start()
    wait_until(lambda: plane.worker() and plane.worker()["iteration"] > before["iteration"], "it trains on")
    assert plane.worker()["key"] == before["key"]
    assert plane.reports[-1]["sequence"] > sequence
    assert len({report["boot_id"] for report in plane.reports}) == 2
    assert process_alive(worker)
    # The worker still follows goals, and its output arrives once: the fake control plane checks every offset.
    plane.want(generation(goal="suspend"))
    wait_until(lambda: plane.events_of("shard_stored"), "its state is stored")
    wait_until(lambda: plane.phase() == "exited", "it has ended")
    assert plane.log_of().count("goal train") == 2, "a reconnected worker gets its goal again"
    assert len(plane.events_of("first_iteration")) == 1
    assert not plane.events_of("failed")


def test_a_worker_whose_agent_never_comes_back_dies_with_its_lease(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    worker = training_worker(agent, plane, hyperparameters={"spawn": "survivor", "deaf": True})
    agent.kill()
    assert process_alive(worker)
    end_lease(agent)
    wait_until(lambda: not process_alive(worker), "the worker is dead")
    wait_until(lambda: not agent.launchers(), "its launcher is gone")
    agent.start()
    wait_until(lambda: plane.phase() == "exited", "the worker's end is reported")
    assert plane.worker()["exit"]["reason"] == "lease_ended"
    (failure,) = wait_until(lambda: plane.events_of("failed"), "as a failure")
    assert (failure["reason"], "lease ended" in failure["message"]) == ("lease_ended", True)


def test_workers_of_a_frozen_agent_die_and_are_reported_on_waking(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    worker = training_worker(agent, plane)
    agent.signal(signal.SIGSTOP)
    end_lease(agent)
    wait_until(lambda: not process_alive(worker), "the worker is dead in time")
    reports = len(plane.reports)
    plane.want(generation())
    agent.signal(signal.SIGCONT)
    wait_until(
        lambda: len(plane.reports) > reports and plane.phase() == "exited", "it reports the worker's end"
    )
    reports = len(plane.reports)
    wait_until(lambda: len(plane.reports) > reports + 3, "it reports on")
    assert len({w["key"] for report in plane.reports for w in report["workers"]}) == 1, (
        "it was not started again"
    )


@pytest.mark.live
def test_workers_die_when_the_control_plane_cannot_be_reached(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    plane.lease_seconds = 3.0
    worker = training_worker(agent, plane)
    with plane.lock:
        plane.refusals = [503] * 10_000
    wait_until(lambda: not process_alive(worker), "the worker is dead")
    with plane.lock:
        plane.refusals = []
    wait_until(lambda: plane.phase() == "exited", "that is reported")


@pytest.mark.live
def test_a_worker_with_a_frozen_launcher_dies_with_its_lease(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    plane.lease_seconds = 3.0
    worker = training_worker(agent, plane)
    (launcher,) = agent.launchers()
    os.kill(launcher["pid"], signal.SIGSTOP)
    with plane.lock:
        plane.refusals = [503] * 10_000
    wait_until(lambda: not process_alive(worker), "the worker is dead")
    with plane.lock:
        plane.refusals = []
    wait_until(lambda: plane.phase() == "exited", "that is reported")
    assert plane.worker()["exit"]["reason"] == "lease_ended"


def test_a_worker_dies_with_its_lease_if_agent_and_launcher_freeze(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    """A paused container freezes both."""
    worker = training_worker(agent, plane, hyperparameters={"spawn": "survivor", "deaf": True})
    (launcher,) = agent.launchers()
    lease_ends_at = float(plane.log_of().rsplit("lease ", 1)[1].split()[0])
    assert 0 < lease_ends_at < boot_time_seconds() + plane.lease_seconds, "the worker got its lease"
    os.kill(launcher["pid"], signal.SIGSTOP)
    agent.signal(signal.SIGSTOP)
    assert process_alive(worker)
    end_lease(agent)
    wait_until(lambda: not process_alive(worker), "the worker is dead")
    os.kill(launcher["pid"], signal.SIGCONT)
    agent.signal(signal.SIGCONT)
    wait_until(lambda: plane.phase() == "exited", "that is reported")
    assert plane.worker()["exit"]["reason"] == "lease_ended"


def test_an_unwanted_worker_ends_though_its_launcher_is_frozen(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.patches["workers.agent.processes.worker_pool.KILL_SECONDS"] = 0.5
    worker = training_worker(agent, plane)
    (launcher,) = agent.launchers()
    os.kill(launcher["pid"], signal.SIGSTOP)
    plane.want()
    wait_until(lambda: not process_alive(worker), "the worker is dead")
    wait_until(lambda: not process_alive(launcher["pid"]), "and its launcher")
    plane.want(generation(number=2))
    wait_until(lambda: plane.phase(number=2) == "training", "its GPU is used again")


def test_a_fenced_node_ends_all_workers_and_restarts_none(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    worker = training_worker(agent, plane)
    with plane.lock:
        plane.refusals = [409]
    wait_until(lambda: not process_alive(worker), "the worker is dead")
    reports = len(plane.reports)
    wait_until(lambda: len(plane.reports) > reports + 1, "it reports")
    # A control plane that is not up to date still lists the worker; the agent must not restart it.
    assert [item["exit"]["reason"] for item in plane.workers if item["exit"]] in ([], ["lost"])
    assert not agent.launchers()
    plane.want(generation(number=2))
    wait_until(lambda: plane.phase(number=2) == "training", "the node takes new work")


def test_a_revoked_agent_ends_its_workers_and_itself(agent: RunningAgent, plane: FakeControlPlane) -> None:
    worker = training_worker(agent, plane)
    plane.credential = "another"
    assert agent.wait_exit() == 77
    assert not process_alive(worker)
    assert not agent.launchers()


def test_killing_a_launcher_kills_its_worker(agent: RunningAgent, plane: FakeControlPlane) -> None:
    worker = training_worker(agent, plane)
    os.kill(agent.launchers()[0]["pid"], signal.SIGKILL)
    wait_until(lambda: not process_alive(worker), "the worker is dead, since nothing else would fence it")
    wait_until(lambda: plane.events_of("failed"), "that is reported")
    assert plane.worker()["exit"]["reason"] == "lost"


def test_sigterm_leaves_workers_running_and_sigint_suspends_them(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    worker = training_worker(agent, plane)
    agent.signal(signal.SIGTERM)
    assert agent.wait_exit() == 0
    assert process_alive(worker)
    agent.start()
    reports = len(plane.reports)
    wait_until(lambda: len(plane.reports) > reports + 1, "it runs again")
    agent.signal(signal.SIGINT)
    assert agent.wait_exit() == 0
    assert not process_alive(worker)
    (stored,) = plane.events_of("shard_stored")
    assert stored["reason"] == "suspend"
    assert (
        Path(stored["uri"].removeprefix("file://")).read_text() == f"state of iteration {stored['iteration']}"
    )
    assert not plane.events_of("failed")


def test_workers_that_do_not_suspend_in_time_are_stopped(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.settings |= {"stop_workers_on_exit": True, "stop_seconds": 0.5, "warm_workers": 1}
    worker = training_worker(agent, plane, hyperparameters={"deaf": True})
    agent.signal(signal.SIGTERM)
    assert agent.wait_exit() == 0
    assert not process_alive(worker)
    assert not agent.launchers()


def test_a_failed_upload_resumes_after_a_restart(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.store.write_text("a file where the store's folder should be: nothing can be stored")
    worker = training_worker(agent, plane, hyperparameters={"final_after": 30})
    wait_until(lambda: "cannot store out/final" in agent.log, "the store refuses the result")
    assert process_alive(worker), "a worker waits until its result is durable"
    agent.kill()
    agent.store.unlink()
    agent.start()
    wait_until(lambda: plane.events_of("completed"), "the result is stored after all")
    assert (agent.store / "jobs/job/artifacts/1/weights.pt").exists()
    wait_until(lambda: plane.phase() == "exited", "the worker has ended")
    assert len(plane.events_of("completed")) == 1


@pytest.mark.live
def test_a_result_of_a_dead_worker_is_stored_after_a_restart(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.store.write_text("nothing can be stored")
    worker = training_worker(agent, plane, hyperparameters={"final_after": 30})
    wait_until(lambda: "cannot store out/final" in agent.log, "the store refuses the result")
    agent.kill()
    os.kill(agent.launchers()[0]["pid"], signal.SIGTERM)
    wait_until(lambda: not process_alive(worker), "the worker is dead")
    agent.store.unlink()
    agent.start()
    wait_until(lambda: plane.events_of("completed"), "its result is stored")
    assert not plane.events_of("failed"), "it had finished"


def test_events_are_repeated_across_restarts_until_acknowledged(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    plane.acknowledge = False
    training_worker(agent, plane)
    wait_until(lambda: plane.events_of("first_iteration"), "the event is sent")
    (event,) = plane.events_of("first_iteration")
    agent.kill()
    reports = len(plane.reports)
    agent.start()
    wait_until(lambda: len(plane.reports) > reports, "it reports again")
    again = [item for item in plane.reports[reports]["events"] if item["kind"] == "first_iteration"]
    assert [item["id"] for item in again] == [event["id"]]
    assert again[0]["age_seconds"] > event["age_seconds"]
    plane.acknowledge = True
    wait_until(lambda: not list((agent.data / "events").glob("*.json")), "then the event is deleted")


def test_an_old_desired_state_that_arrives_late_changes_nothing(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    worker = training_worker(agent, plane, number=5)
    for epoch, version in ((1, 1), (0, 99)):
        with plane.lock:
            plane.epoch, plane.version, plane.generations = epoch, version, []
        wait_reports(plane, 5)
        assert process_alive(worker), "an older answer must not end newer work"
    with plane.lock:
        plane.epoch, plane.version = 1, 100
    plane.want(generation(number=5), generation(number=4))
    reports = len(plane.reports)
    wait_until(lambda: len(plane.reports) > reports + 4, "the agent has received that answer")
    assert {(item["job"], item["generation"]) for item in plane.workers} == {("job", 5)}


def test_a_lost_wake_up_delays_work_by_one_report(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.start()
    wait_until(lambda: plane.reports, "the agent runs")
    plane.want(generation(), wake=False)
    wait_until(lambda: plane.phase() == "training", "the report's answer announced the new state")


def measuring(max_seconds: float, **wishes: Any) -> dict[str, Any]:
    """Return a measurement that hangs in its import and starts a process that tries to outlive it."""
    return generation(
        purpose="profiling",
        profile={"levels": [1], "seconds_per_level": 1.0, "max_seconds": max_seconds},
        hyperparameters={"global_batch_size": 4, "deaf": True, "spawn": "measuring", **wishes},
    )


@pytest.mark.live
def test_a_hanging_measurement_is_killed_at_its_bound(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.start()
    plane.want(measuring(4.0))
    wait_until(lambda: plane.phase() == "training", "its worker hangs")
    (launcher,) = agent.launchers()
    (failure,) = wait_until(lambda: plane.events_of("failed"), "it is ended")
    assert failure["reason"] == "measuring_timeout"
    assert "4 s" in failure["message"]
    wait_until(lambda: not process_alive(launcher["worker_pid"]), "its processes are dead")
    assert len(plane.reports) > 3, "the lease was always renewed: the bound ended the worker"
    wait_until(lambda: plane.phase() == "exited", "it is reported")


@pytest.mark.live
def test_a_measurement_ends_at_its_bound_while_its_agent_is_away(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.start()
    plane.want(measuring(4.0))
    wait_until(lambda: plane.phase() == "training", "its worker hangs")
    (launcher,) = agent.launchers()
    agent.kill()
    wait_until(lambda: not process_alive(launcher["worker_pid"]), "its launcher kept the bound")
    agent.start()
    (failure,) = wait_until(lambda: plane.events_of("failed"), "the failure is reported")
    assert failure["reason"] == "measuring_timeout"
