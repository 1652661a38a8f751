"""An agent at work: it enrols, starts workers, reports them, stores their results, stops them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from typing import Any

import pytest

from tests.agent.conftest import PROJECT, RunningAgent, process_alive, wait_until
from tests.agent.fake_control_plane import FakeControlPlane, generation, recovery_point, zip_bundle


def add_bundle(plane: FakeControlPlane, content: bytes, entry: str = "function:Function") -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    plane.bundles[digest] = content
    return {"digest": digest, "entry": entry, "requirements_digest": None}


def test_a_job_is_trained_and_its_result_stored(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.start()
    plane.want(generation(hyperparameters={"final_after": 20}))
    event = wait_until(lambda: plane.events_of("completed"), "the job is completed")[0]
    assert event["iteration"] == 20
    assert event["sample_order_digest"] == "abc"
    assert event["store_seconds"] > 0
    (artifact,) = event["artifacts"]
    assert artifact["name"] == "weights.pt"
    assert artifact["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert (agent.store / "jobs/job/artifacts/1/weights.pt").read_bytes() == b"weights"
    assert artifact["uri"] == (agent.store / "jobs/job/artifacts/1/weights.pt").as_uri()
    wait_until(lambda: plane.phase() == "exited", "the worker has ended")
    assert plane.worker()["exit"]["code"] == 0
    assert not plane.events_of("failed")
    plane.want()
    wait_until(lambda: plane.workers == [], "the worker is no longer reported")
    wait_until(lambda: not list(agent.data.glob("workers/*")), "its folder is deleted")
    assert "bundle ['function.py']" in plane.log_of()
    assert plane.metrics[0]["values"] == {"loss": 1.0}
    assert plane.events_of("first_iteration")[0]["age_seconds"] > 0


def test_an_agent_enrols_once_and_keeps_its_credential_private(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    model = {
        "name": "a100",
        "fixed_seconds": 0.1,
        "seconds_per_sample": 0.01,
    }
    agent.settings |= {"slots": 2, "emulate": model}
    agent.start()
    wait_until(lambda: plane.reports, "the agent reports")
    (enrolment,) = plane.enrolments
    assert enrolment["name"] == "node-1"
    assert [gpu["kind"] for gpu in enrolment["inventory"]["gpus"]] == ["emulated-a100"] * 2
    assert all(gpu["emulated"] for gpu in enrolment["inventory"]["gpus"])
    assert enrolment["inventory"]["sandbox"] in ("namespaces", "user")
    assert stat.S_IMODE((agent.data / "credential.json").stat().st_mode) == 0o600
    identifiers = {gpu["uuid"] for gpu in enrolment["inventory"]["gpus"]}
    agent.kill()
    agent.start()
    reports = len(plane.reports)
    wait_until(lambda: len(plane.reports) > reports, "the agent reports again")
    assert len(plane.enrolments) == 1
    assert {gpu["uuid"] for gpu in plane.reports[reports]["inventory"]["gpus"]} == identifiers
    plane.want(generation())
    wait_until(lambda: plane.phase() == "training", "the worker trains")
    worker = next(agent.data.glob("workers/*/assignment.json"))
    assert json.loads(worker.read_text())["job"] == "job"


def test_a_used_token_is_a_clear_error(agent: RunningAgent, plane: FakeControlPlane) -> None:
    plane.token = "another"
    agent.start()
    assert agent.wait_exit() == 2
    assert "does not enrol this server" in agent.log
    assert "the token is not valid" in agent.log
    assert "Traceback" not in agent.log


def test_the_next_generation_starts_from_the_suspended_state(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.start()
    plane.want(generation())
    wait_until(lambda: plane.phase() == "training" and plane.worker()["iteration"] > 2, "generation 1 trains")
    plane.want(generation(goal="suspend"))
    stored = wait_until(lambda: plane.events_of("shard_stored"), "its state is durable")[0]
    assert stored["reason"] == "suspend"
    assert stored["uri"].endswith(f"jobs/job/checkpoints/1-{stored['iteration']}/0.pt")
    wait_until(lambda: plane.phase() == "exited", "generation 1 has ended")
    plane.want(generation(number=2, start=recovery_point(stored)))
    wait_until(lambda: plane.phase(number=2) == "training", "generation 2 trains")
    wait_until(
        lambda: f"loaded state of iteration {stored['iteration']}" in plane.log_of(number=2),
        "the state is loaded",
    )
    assert plane.worker(number=2)["iteration"] >= stored["iteration"]


def test_a_new_generation_prepares_while_the_old_trains_then_replaces(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.start()
    plane.want(generation())
    wait_until(lambda: plane.phase() == "training", "generation 1 trains")
    plane.want(generation(), generation(number=2, goal="prepare", start=None))
    wait_until(lambda: plane.phase(number=2) == "ready", "generation 2 is ready")
    assert plane.phase() == "training"
    plane.want(generation(number=2))
    wait_until(
        lambda: plane.phase(number=2) == "training" and plane.phase() is None, "only generation 2 is left"
    )
    plane.want(generation(number=2), generation(number=1), epoch=1)
    reports = len(plane.reports)
    wait_until(lambda: len(plane.reports) > reports + 2, "the agent reports on")
    assert plane.phase(number=1) is None, "an old generation was started again"


@pytest.mark.live
def test_withdrawing_a_preparing_generation_leaves_the_old_training(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.start()
    plane.want(generation())
    wait_until(lambda: plane.phase() == "training", "generation 1 trains")
    plane.want(generation(), generation(number=2, goal="prepare", start=None))
    wait_until(lambda: plane.phase(number=2) is not None, "generation 2 is on its way")
    plane.want(generation())
    wait_until(lambda: plane.phase(number=2) is None, "nothing is left of generation 2")
    reached = plane.worker()["iteration"]
    wait_until(lambda: plane.worker()["iteration"] > reached, "generation 1 trains on")
    plane.want(generation(), generation(number=3, goal="prepare", start=None))
    wait_until(lambda: plane.phase(number=3) == "ready", "generation 3 prepares in its place")
    assert plane.phase() == "training"


def test_warm_workers_are_kept_ready_and_used_once(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.settings["warm_workers"] = 2
    agent.start()
    wait_until(lambda: len(agent.launchers()) == 2, "two workers are warm")
    assert plane.workers == [], "warm workers belong to no job"
    warm = {launcher["folder"].name for launcher in agent.launchers()}
    plane.want(generation())
    wait_until(lambda: plane.phase() == "training", "a warm worker trains")
    assert plane.worker()["key"] in warm
    working = next(item for item in agent.launchers() if item["folder"].name == plane.worker()["key"])
    assert os.getpriority(os.PRIO_PROCESS, working["worker_pid"]) == 0, "work has the normal priority"
    wait_until(lambda: len(agent.launchers()) == 3, "the pool is filled again")
    plane.want(generation(goal="stop"))
    wait_until(lambda: plane.phase() == "exited", "it has stopped")
    plane.want(generation(job="other"))
    wait_until(lambda: plane.phase("other") == "training", "the next job trains")
    used = {w["key"] for report in plane.reports for w in report["workers"] if w["job"] == "job"}
    assert used
    assert plane.worker("other")["key"] not in used


def test_a_dead_worker_is_reported_with_its_signal_not_restarted(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.start()
    plane.want(generation(hyperparameters={"crash": True}))
    failure = wait_until(lambda: plane.events_of("failed"), "the death is reported")[0]
    assert failure["reason"] == "killed"
    assert "signal 9" in failure["message"]
    assert plane.events_of("first_iteration"), "earlier events are reported"
    wait_until(lambda: plane.phase() == "exited", "it is listed as gone")
    assert plane.worker()["exit"]["signal"] == 9
    reports = len(plane.reports)
    wait_until(lambda: len(plane.reports) > reports + 3, "the agent reports on")
    assert len({worker["key"] for report in plane.reports for worker in report["workers"]}) == 1


def test_stopping_a_worker_ends_its_child_processes(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.patches["workers.agent.processes.worker_pool.STOP_GRACE_SECONDS"] = 0.2
    agent.start()
    plane.want(generation(hyperparameters={"spawn": "escapee-of-the-test", "deaf": True}))
    wait_until(lambda: plane.phase() == "training", "it trains")
    escapees = wait_until(lambda: find_processes("escapee-of-the-test"), "its daemon runs")
    plane.want(generation(goal="stop"))
    wait_until(lambda: plane.phase() == "exited", "the worker is gone, although it ignores all goals")
    assert not any(process_alive(process_id) for process_id in escapees)
    assert not plane.events_of("failed")


def find_processes(argument: str) -> list[int]:
    processes = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if argument.encode() in file.read():
                        processes.append(int(entry))
            except OSError:
                continue
    return processes


@pytest.mark.live
def test_a_malicious_bundle_fails_the_job_with_the_reason(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.start()
    plane.want(generation(function=add_bundle(plane, zip_bundle({"../../escaped.py": b"evil"}))))
    failure = wait_until(lambda: plane.events_of("failed"), "the failure is reported")[0]
    assert failure["reason"] == "function_load_error"
    assert "leads out of the bundle" in failure["message"]
    assert not list(agent.folder.rglob("escaped.py"))


def test_an_unknown_bundle_or_a_missing_gpu_fails_the_job(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.start()
    unknown = {"digest": "0" * 64, "entry": "a:B", "requirements_digest": None}
    plane.want(
        generation("no-bundle", function=unknown),
        generation("no-gpu", workers=[{"rank": 0, "gpu_index": 77}]),
        generation("no-data", data=[{"name": "x", "path": "/etc"}]),
    )
    wait_until(lambda: len(plane.events_of("failed")) == 3, "all three are reported")
    reasons = {event["job"]: event["reason"] for event in plane.events_of("failed")}
    assert reasons == {
        "no-bundle": "function_load_error",
        "no-gpu": "start_failed",
        "no-data": "data_unavailable",
    }
    wait_until(lambda: plane.phase("no-gpu") == "exited", "a worker that never started is listed as gone")


def test_requirements_and_data_are_read_only_in_the_box(agent: RunningAgent, plane: FakeControlPlane) -> None:
    datasets = agent.folder / "datasets"
    (datasets / "images").mkdir(parents=True)
    (datasets / "images/1.txt").write_text("first image")
    (datasets / "private").mkdir()
    agent.settings |= {"data_roots": [str(datasets)], "allow_private_addresses": True}
    plane.environments["req-1"] = overlay({"package/__init__.py": b"answer = 42"})
    plane.bundles["table.csv"] = b"1,2,3"
    agent.start()
    plane.want(
        generation(
            function={**generation()["function"], "requirements_digest": "req-1"},
            data=[{"name": "images", "path": str(datasets / "images")}],
            hyperparameters={
                "look": ["/box/data", "/box/data/images", "/box/overlay/package", str(datasets)]
            },
        )
    )
    wait_until(lambda: "SEEN" in plane.log_of(), "the worker has printed what it can see")
    visible = json.loads(next(line for line in plane.log_of().splitlines() if line.startswith("SEEN"))[5:])
    assert visible["paths"]["/box/data"] == ["images"]
    assert visible["paths"]["/box/data/images"] == ["1.txt"]
    assert "__init__.py" in visible["paths"]["/box/overlay/package"]
    assert visible["paths"][str(datasets)].startswith("error")
    assert not (datasets / "images/probe").exists()


def overlay(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_declared_urls_are_fetched_once_per_node(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.settings["allow_private_addresses"] = True
    plane.bundles["table.csv"] = b"1,2,3"
    plane.credential = "credential-1"
    agent.start()
    data = [{"name": "table.csv", "url": f"{plane.url}/agent/v1/public/table.csv"}]
    plane.environments["table.csv"] = b"1,2,3"
    look = {"look": ["/box/data/table.csv"]}
    plane.want(generation("one", data=data, hyperparameters=look))
    wait_until(lambda: "1,2,3" in plane.log_of("one"), "the first job sees it")
    plane.want(generation("two", data=data, hyperparameters=look))
    wait_until(lambda: "1,2,3" in plane.log_of("two"), "the second job sees it")
    assert plane.fetched.count("/agent/v1/public/table.csv") == 1


def test_a_link_among_the_results_is_not_stored(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.start()
    plane.want(generation(hyperparameters={"final_after": 3, "link": str(agent.data / "credential.json")}))
    event = wait_until(lambda: plane.events_of("completed"), "the job is completed")[0]
    assert [artifact["name"] for artifact in event["artifacts"]] == ["weights.pt"]
    assert "credential-1" not in str(list(agent.store.rglob("*")))


def test_endless_output_is_cut_at_the_limit(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.settings["log_limit_bytes"] = 1000
    agent.start()
    plane.want(generation(hyperparameters={"shout": 5000}))
    wait_until(lambda: "the log is full" in plane.log_of(), "the log notes that it is full")
    wait_until(lambda: plane.phase() == "training", "the worker trains on")
    assert len(plane.log_of()) < 1200


def test_two_agents_cannot_share_a_data_folder(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.start()
    wait_until(lambda: plane.reports, "the first agent runs")
    second = subprocess.run(
        [sys.executable, "-m", "workers.agent", "run", "--config", str(agent.folder / "agent.toml")],
        cwd=PROJECT,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 2
    assert "another agent runs with the data folder" in second.stderr
    status = subprocess.run(
        [sys.executable, "-m", "workers.agent", "status", "--json", "--data", str(agent.data)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(status.stdout) == {"server_id": "server-1", "running": True, "workers": []}


@pytest.mark.parametrize("status", [500, pytest.param(503, marks=pytest.mark.live)])
def test_requests_to_a_failing_control_plane_are_repeated(
    agent: RunningAgent, plane: FakeControlPlane, status: int
) -> None:
    plane.refusals = [status] * 3
    agent.start()
    wait_until(lambda: plane.reports, "a report comes through")
    plane.want(generation())
    wait_until(lambda: plane.phase() == "training", "training continues")


@pytest.mark.live
def test_an_event_that_is_always_refused_does_not_block_others(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    plane.refuse_event_kind = "first_iteration"
    agent.start()
    plane.want(generation(hyperparameters={"final_after": 10}))
    wait_until(lambda: plane.events_of("completed"), "the completion comes through")
    assert len(list((agent.data / "events/refused").iterdir())) == 1
