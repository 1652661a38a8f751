"""Faults act on the processes that they name, and are always undone."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from faults.injecting import Means, carry_out, fill
from faults.processes import Found, NotRunningError, Process, find
from faults.proxy import PASSES, Behaviour, Proxy
from faults.schedule import Fault, Kind, Part, Target
from launch.folders import Folders

WEB = Target(Part.WEB, "web")
NODE = Target(Part.SERVER, "agent-node-1", "node-1")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def means(child: subprocess.Popen[bytes]) -> Means:
    own = Process.of(child.pid)
    assert own is not None
    return Means(find=lambda: {WEB: Found(WEB, (own,), (own,))})


def status(child: subprocess.Popen[bytes]) -> str:
    return str(psutil.Process(child.pid).status())


def test_a_killed_process_is_gone(child):
    (deed,) = carry_out([Fault(0.0, Kind.KILL, WEB)], means(child))
    assert child.wait(30) == -9
    assert deed.begun_at is not None


def test_a_frozen_process_resumes_on_schedule(child):
    seen = []

    def look(text: str) -> None:
        while status(child) != psutil.STATUS_STOPPED:
            pass
        seen.append(text)

    (deed,) = carry_out([Fault(0.0, Kind.FREEZE, WEB, 0.2)], means(child), say=look)
    assert len(seen) == 1
    while status(child) == psutil.STATUS_STOPPED:
        pass
    assert deed.begun_at is not None
    assert deed.ended_at is not None
    assert deed.begun_at < deed.ended_at


def test_stopping_the_schedule_resumes_frozen_processes(child):
    stop = threading.Event()
    carry_out([Fault(0.0, Kind.FREEZE, WEB, 600.0)], means(child), stop=stop, say=lambda text: stop.set())
    while status(child) == psutil.STATUS_STOPPED:
        pass


@pytest.fixture
def several() -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-c", "input()"]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(3)]
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def whole_server(processes: list[subprocess.Popen[bytes]]) -> Means:
    alive = tuple(one for process in processes if (one := Process.of(process.pid)) is not None)
    return Means(find=lambda: {NODE: Found(NODE, alive, alive)}, whole_servers=True)


def test_a_whole_server_is_killed_and_frozen_with_all_that_runs_there(several):
    seen = []

    def look(text: str) -> None:
        while {status(process) for process in several} != {psutil.STATUS_STOPPED}:
            pass
        seen.append(text)

    carry_out([Fault(0.0, Kind.FREEZE, NODE, 0.2)], whole_server(several), say=look)
    assert len(seen) == 1
    carry_out([Fault(0.0, Kind.KILL, NODE)], whole_server(several))
    assert [process.wait(30) for process in several] == [-9, -9, -9]


def test_whole_servers_are_targets_only_on_request(several):
    means = whole_server(several)
    assert (means.targets(), means.servers()) == ([], [NODE])
    means.whole_servers = False
    assert (means.targets(), means.servers()) == ([], [])


def test_a_fault_on_an_absent_target_does_not_count():
    (deed,) = carry_out([Fault(0.0, Kind.KILL, WEB)], Means(find=dict))
    assert deed.begun_at is None


def test_a_process_that_got_the_id_of_another_one_is_left_alone(child):
    own = Process.of(child.pid)
    assert own is not None
    assert not Process(own.pid, own.started_ticks + 1).send(signal.SIGKILL)
    assert child.poll() is None


def test_a_link_misbehaves_only_during_its_fault(monkeypatch):
    behaviours: list[Behaviour] = []
    link = Target(Part.CONTROL_LINK, "link", "node-1")
    with Proxy(("127.0.0.1", 0), ("127.0.0.1", 1)) as proxy:
        monkeypatch.setattr(proxy, "behave", behaviours.append)
        carry_out([Fault(0.0, Kind.CUT, link, 0.05)], Means(find=dict, proxies={"node-1": [proxy]}))
    assert behaviours == [Behaviour(cut=True), PASSES]


def test_the_machines_own_disk_is_never_filled(tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    with pytest.raises(ValueError, match="no disk of its own"):
        fill(folder)
    assert list(folder.iterdir()) == []


def test_without_a_platform_no_targets_exist(tmp_path):
    with pytest.raises(NotRunningError, match=str(tmp_path)):
        find(Folders(tmp_path))
