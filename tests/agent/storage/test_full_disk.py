"""A full disk under the agent's folder: running workers continue, no new work starts, and nothing is lost."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.injecting import Undo, fill
from tests.agent.conftest import RunningAgent, process_alive, wait_until
from tests.agent.fake_control_plane import FakeControlPlane, generation
from tests.agent.test_survival import wait_reports
from workers.agent.storage.unpacking import unpack_bundle

DISK = "size=64m,mode=0711"


@pytest.fixture
def agent_on_a_small_disk(agent: RunningAgent) -> Iterator[RunningAgent]:
    agent.data.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(agent.data)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no small disk can be made here: {done.stderr.decode().strip()}")
    try:
        yield agent
    finally:
        agent.close()
        subprocess.run(["umount", "-l", str(agent.data)], check=True)


def test_lack_of_room_for_a_bundle_is_not_reported_as_a_broken_bundle(
    agent_on_a_small_disk: RunningAgent, tmp_path: Path
) -> None:
    data = agent_on_a_small_disk.data
    bundle = tmp_path / "bundle.zip"
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("function.py", "x" * 1024**2)
    empty = fill(data)
    with pytest.raises(OSError, match="No space left"):
        unpack_bundle(bundle, "function:Job", data / "unpacked")
    empty()
    unpack_bundle(bundle, "function:Job", data / "again")
    assert (data / "again" / "function.py").stat().st_size == 1024**2


@pytest.mark.live
def test_agent_and_workers_outlive_a_full_disk(
    agent_on_a_small_disk: RunningAgent, plane: FakeControlPlane
) -> None:
    agent, lease_reports = agent_on_a_small_disk, 30
    plane.lease_seconds = 3.0
    agent.start()
    plane.want(generation(goal="prepare"))
    wait_until(lambda: plane.phase() == "ready", "the worker is ready")
    key = plane.worker()["key"]
    (worker,) = (int(item["worker_pid"]) for item in agent.launchers())
    empty: Undo = fill(agent.data)
    plane.want(generation(goal="train"))
    wait_until(lambda: plane.events_of("first_iteration"), "its event arrives")
    wait_reports(plane, lease_reports)  # far longer than the lease, so it was renewed
    assert plane.phase() == "training"
    assert process_alive(worker)
    plane.want(generation(goal="train"), generation("other"))
    wait_reports(plane, 5)
    assert not plane.worker(job="other"), "what cannot be remembered does not begin"
    empty()
    wait_until(lambda: plane.phase(job="other") in ("ready", "training"), "it begins when there is room")
    assert agent.process is not None
    assert agent.process.is_alive(), "it is the same agent"
    agent.kill()
    agent.start()
    wait_reports(plane, 5)
    assert plane.worker()["key"] == key
    assert plane.phase() == "training", "what waited for room is on the disk"
    assert not plane.events_of("failed")


@pytest.mark.live
def test_an_agent_that_is_started_on_a_full_disk_waits_for_room(
    agent_on_a_small_disk: RunningAgent, plane: FakeControlPlane
) -> None:
    agent = agent_on_a_small_disk
    agent.start()
    wait_reports(plane, 2)
    agent.kill()
    empty: Undo = fill(agent.data)
    agent.start()
    log = agent.folder / "agent.log"
    wait_until(lambda: "waits for room" in log.read_text(), "it says so")
    assert agent.process is not None
    assert agent.process.is_alive()
    empty()
    wait_reports(plane, 2)
    assert agent.process.is_alive(), "it is the same agent"
