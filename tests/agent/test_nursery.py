"""Forked workers must not differ from workers in an interpreter of their own."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import RunningAgent, process_alive, wait_until
from tests.agent.fake_control_plane import FakeControlPlane, generation
from workers.agent.processes.nursery import Nursery
from workers.agent.processes.nursery_process import PRELOAD


def visible_to_worker(plane: FakeControlPlane, number: int = 1) -> dict[str, Any]:
    """Return what a worker of a new generation can see of its surroundings."""
    plane.want(generation(number=number, hyperparameters={"look": ["/box"]}))
    lines: list[str] = wait_until(
        lambda: [line for line in plane.log_of(number=number).splitlines() if line.startswith("SEEN")],
        "the worker has printed what it can see",
    )
    visible: dict[str, Any] = json.loads(lines[0][5:])
    return visible


def nursery_of(agent: RunningAgent) -> int | None:
    """Return the process id of the running agent's nursery."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == agent.process_id and b"nursery_process" in (entry / "cmdline").read_bytes():
                    return int(entry.name)
            except (FileNotFoundError, ProcessLookupError):
                continue
    return None


def parent_of(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_forked_worker_equals_a_started_one(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.environment = {"SECRET_KEY": "secret"}
    agent.settings["memory_store_bytes"] = 0  # a store's socket appears in the box at any time
    agent.start()
    forked = visible_to_worker(plane)
    assert "the nursery is ready" in agent.log
    (launcher,) = agent.launchers()
    assert parent_of(launcher["pid"]) == nursery_of(agent)
    plane.want()
    wait_until(lambda: not agent.launchers(), "the first worker has ended")
    agent.kill()
    agent.settings["nursery"] = False
    agent.start()
    started = visible_to_worker(plane, 2)
    (launcher,) = agent.launchers()
    assert parent_of(launcher["pid"]) == agent.process_id
    assert nursery_of(agent) is None
    assert forked.pop("random") != started.pop("random")
    assert forked["main"] == "workers.runtime.__main__"
    for visible in (forked, started):
        del visible["user"]  # each worker has its own user
        visible["descriptors"] = [name.partition("[")[0] for name in visible["descriptors"]]
        visible["arguments"][0] = ""  # the file that is run, or the module
    assert forked == started


@pytest.mark.live
def test_two_workers_of_one_nursery_draw_different_numbers(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.start()
    assert visible_to_worker(plane)["random"] != visible_to_worker(plane, 2)["random"]


def test_workers_outlive_the_nursery_and_later_ones_start_without_it(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.start()
    plane.want(generation("first"))
    wait_until(lambda: plane.phase("first") == "training", "the first one trains")
    nursery = nursery_of(agent)
    assert nursery is not None
    (launcher,) = agent.launchers()
    os.kill(nursery, signal.SIGKILL)
    plane.want(generation("first"), generation("second", workers=[{"rank": 0, "gpu_index": 1}]))
    wait_until(lambda: plane.phase("second") == "training", "the second one trains")
    assert process_alive(launcher["worker_pid"])
    assert "workers are started without the nursery" in agent.log
    # The end of a killed launcher is noticed although it is not a child of the agent.
    os.kill(launcher["pid"], signal.SIGKILL)
    wait_until(lambda: plane.phase("first") == "exited", "its end is reported")


def test_the_nursery_ends_with_its_agent_and_the_workers_survive(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.start()
    plane.want(generation())
    wait_until(lambda: plane.phase() == "training", "the worker trains")
    nursery = nursery_of(agent)
    assert nursery is not None
    (launcher,) = agent.launchers()
    agent.kill()
    wait_until(lambda: not process_alive(nursery), "the nursery is gone")
    assert process_alive(launcher["worker_pid"])


@pytest.mark.parametrize(
    ("imported", "reason"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()", "1 threads"),
        ("raise ImportError('no such package')", "ended while it imported"),
    ],
)
def test_no_worker_is_forked_from_an_unsuitable_nursery(
    agent: RunningAgent, plane: FakeControlPlane, imported: str, reason: str
) -> None:
    (agent.runtime / PRELOAD).write_text(imported)
    agent.start()
    plane.want(generation())
    wait_until(lambda: plane.phase() == "training", "the worker trains all the same")
    assert reason in agent.log


def test_warm_workers_serve_before_the_next_nursery_is_ready(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    """A restarted agent uses workers that outlived it at once, however long its next nursery imports."""
    slow = agent.folder / "slow"
    (agent.runtime / PRELOAD).write_text(
        f"import pathlib, time\nwhile pathlib.Path({str(slow)!r}).exists():\n    time.sleep(0.05)\n"
    )
    agent.settings["warm_workers"] = 1
    agent.start()
    wait_until(lambda: "the nursery is ready" in agent.log, "warm workers can be forked")
    warm = wait_until(
        lambda: [
            launcher["folder"].name
            for launcher in agent.launchers()
            if "probe" not in launcher["folder"].name
        ],
        "a worker is warm",
    )
    agent.kill()
    slow.touch()
    agent.start()
    plane.want(generation(), generation(job="other", workers=[{"rank": 0, "gpu_index": 1}]))
    wait_until(lambda: plane.phase() == "training", "the warm one trains")
    assert [plane.worker()["key"]] == warm
    assert agent.log.count("the nursery is ready") == 1, "that of the first agent"
    assert plane.phase("other") is None, "a new worker would import what the nursery is about to have"
    slow.unlink()
    wait_until(lambda: plane.phase("other") == "training", "the other one is forked")


def test_a_nursery_that_is_not_ready_forks_no_worker(tmp_path: Path) -> None:
    nursery = Nursery(tmp_path)
    assert nursery.look() in ("starting", "ready")
    nursery.close()
    assert nursery.look() == "unusable"
    with pytest.raises(OSError, match="not ready"):
        nursery.fork_launcher(tmp_path)
