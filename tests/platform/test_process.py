"""A process of the platform is kept running, and its children end with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from launch.commands import OneShot
from launch.errors import LaunchError
from launch.folders import PROJECT
from launch.forking import _SET_BY_IMPORTS, Fork
from launch.process import ManagedProcess, ProcessSpecification, cut_log
from launch.progress import Progress
from launch.settings import PlatformSettings
from launch.supervisor import Supervisor
from launch.waiting import wait_until

#: Starts a child, writes both ids, waits.
WITH_CHILD = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""
DEAF = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text("deaf")
while True:
    time.sleep(1)
"""


@pytest.fixture(params=["started", "forked"])
def make(tmp_path: Path, request: pytest.FixtureRequest):
    made: list[ManagedProcess] = []

    def make_process(program: str, **more: Any) -> ManagedProcess:
        script = tmp_path / f"program-{len(made)}.py"
        script.write_text(program)
        process = ManagedProcess(
            ProcessSpecification(
                name="example",
                command=[sys.executable, str(script), str(tmp_path / "said")],
                environment={"PATH": os.environ["PATH"]},
                log=tmp_path / "example.log",
                working_folder=tmp_path,
                is_forked=request.param == "forked",
                **more,
            )
        )
        made.append(process)
        return process

    yield make_process
    for process in made:
        process.finish(grace_seconds=0)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(condition: Callable[[], bool]) -> None:
    assert wait_until(condition, timeout_seconds=60)


class Clock:
    """The time that `launch.process` reads, set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    turned = Clock()
    monkeypatch.setattr("launch.process.time", turned)
    return turned


def test_a_killed_process_is_restarted_and_its_orphans_are_ended(make, tmp_path):
    process = make(WITH_CHILD)
    process.start()
    said = tmp_path / "said"
    wait_for(lambda: said.exists() and len(said.read_text().split()) == 2)
    parent, child = map(int, said.read_text().split())
    os.kill(parent, signal.SIGKILL)
    happened: list[str] = []

    def restarted() -> bool:
        message = process.keep_running()
        if message:
            happened.append(message)
        return process.restarts == 1 and process.is_running

    wait_for(restarted)
    assert happened == ["example ended (SIGKILL), restarting"]
    assert process.pid != parent
    wait_for(lambda: is_gone(child))


def test_a_process_that_ends_at_once_is_restarted_later_each_time(make, clock):
    process = make("raise SystemExit(3)")
    process.start()
    delays: list[float] = []

    def ended_four_times() -> bool:
        if not process.is_running:
            clock.now += 0.1
        if process.keep_running():
            delays.append(process._backoff_seconds)
        return len(delays) == 4

    wait_for(ended_four_times)
    assert delays == sorted(delays)
    assert delays[-1] >= 4 * delays[0]


def test_a_process_deaf_to_its_stop_signal_is_killed_after_its_grace(make, tmp_path):
    process = make(DEAF)
    process.start()
    wait_for((tmp_path / "said").exists)
    pid = process.pid
    process.ask_to_stop()
    assert not process.finish(grace_seconds=0.2)
    assert is_gone(pid)


def test_even_a_frozen_process_can_be_stopped(make, tmp_path):
    process = make(WITH_CHILD)
    process.start()
    wait_for((tmp_path / "said").exists)
    os.kill(process.pid, signal.SIGSTOP)
    process.ask_to_stop()
    assert process.finish(grace_seconds=60)


def test_a_process_that_ends_while_starting_shows_the_end_of_its_log(make):
    process = make("raise SystemExit('the disk is full')", is_ready=lambda: False)
    process.start()
    with pytest.raises(LaunchError, match="the disk is full"):
        process.wait_ready()


def test_a_missing_program_is_named(tmp_path):
    process = ManagedProcess(
        ProcessSpecification("ghost", ["/no/such/program"], {}, tmp_path / "log", tmp_path)
    )
    with pytest.raises(LaunchError, match="ghost cannot be started"):
        process.start()


def test_a_process_dies_with_its_supervisor(tmp_path):
    said = tmp_path / "said"
    supervisor = f"""
import time
from pathlib import Path
from launch.process import ManagedProcess, ProcessSpecification
folder = Path({str(tmp_path)!r})
command = [{sys.executable!r}, "-S", "-c", {DEAF!r}, str(folder / "said")]
process = ManagedProcess(ProcessSpecification("example", command, {{}}, folder / "log", folder))
process.start()
print(process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", supervisor], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_for(said.exists)
        parent.kill()
    wait_for(lambda: is_gone(pid))


#: Says what it has of its parent: arguments, variables, folder, open files, handled signals.
HERITAGE = """
import atexit, json, os, pathlib, signal, sys
atexit.register(print, "at its end", file=sys.stderr)
files = {number: os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
handled = [number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))]
print("into the log", file=sys.stderr)
pathlib.Path(sys.argv[1]).write_text(json.dumps({
    "arguments": sys.argv[1:], "variables": sorted(os.environ), "folder": os.getcwd(),
    "files": sorted({file for file in files.values() if file.startswith("/") and "/proc/" not in file}),
    "handled": handled, "leads": os.getsid(0) == os.getpid(),
    "name": pathlib.Path("/proc/self/comm").read_text(),
}))
"""


def test_a_fork_has_nothing_of_its_parent_but_the_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", None)  # as after `make run >&-`
    said, log, script = tmp_path / "said", tmp_path / "log", tmp_path / "heritage.py"
    script.write_text(HERITAGE)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with (tmp_path / "lock").open("w"), log.open("wb") as output:
            child = Fork(
                "a-name-that-is-too-long", [sys.executable, str(script), str(said)], {"ONE": "1"}, tmp_path,
                lambda: None, stdout=output,
            )  # fmt: skip
            assert child.wait(60) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    heritage = json.loads(said.read_text())
    assert heritage.pop("variables") == sorted({"ONE", *_SET_BY_IMPORTS})
    assert heritage == {
        "arguments": [str(said)], "folder": str(tmp_path), "files": ["/dev/null", str(log)],
        "handled": [signal.SIGINT], "leads": True, "name": "a-name-that-is-\n",
    }  # fmt: skip
    assert log.read_text() == "into the log\nat its end\n"


def test_a_fork_obeys_signals_from_its_first_moment(tmp_path: Path) -> None:
    script = tmp_path / "sleep.py"
    script.write_text("import time; time.sleep(20)")
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with (tmp_path / "log").open("wb") as output:
            for _ in range(20):
                child = Fork(
                    "example", [sys.executable, str(script)], {}, tmp_path, lambda: None, stdout=output
                )  # fmt: skip
                child.send_signal(signal.SIGTERM)
                assert child.wait(60) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_fork_that_the_machine_refuses_leaves_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr("os.fork", refuse)
    with (tmp_path / "log").open("wb") as output:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(BlockingIOError):
            Fork("example", [sys.executable, "none.py"], {}, tmp_path, lambda: None, stdout=output)
        assert os.listdir("/proc/self/fd") == before


#: Imports what forks share, and says what that changed in the importing process.
IMPORTING = """
import json, logging, os
from launch.forking import import_shared
variables = dict(os.environ)
import_shared({"PATH": os.environ["PATH"], "SECRET_KEY": "secret"})
from django.conf import settings
print(json.dumps({
    "variables": dict(os.environ) == variables, "handlers": len(logging.getLogger().handlers),
    "threads": len(os.listdir("/proc/self/task")), "settings": [settings.SECRET_KEY, settings.REDIS_URL],
}))
"""


def test_imports_for_forks_leave_the_supervisor_as_it_is() -> None:
    own = {**os.environ, "SECRET_KEY": "another", "REDIS_URL": "redis://another", "LOG_LEVEL": "DEBUG"}
    answer = subprocess.run(
        [sys.executable, "-c", IMPORTING], cwd=PROJECT, env=own, capture_output=True, text=True, check=True
    )
    assert json.loads(answer.stdout) == {
        "variables": True, "handlers": 0, "threads": 1,
        "settings": ["secret", "redis://localhost:6379/0"],
    }  # fmt: skip


def test_a_log_that_grew_too_large_keeps_one_predecessor(tmp_path, monkeypatch):
    monkeypatch.setattr("launch.process._LARGEST_LOG_BYTES", 100)
    log = tmp_path / "example.log"
    with log.open("ab") as writer:
        writer.write(b"x" * 150)
        writer.flush()
        cut_log(log)
        writer.write(b"after")
    assert log.read_bytes() == b"after"
    assert (tmp_path / "example.log.1").read_bytes() == b"x" * 150


@pytest.mark.parametrize("frozen", [False, True])
def test_a_process_without_a_heartbeat_is_killed_and_restarted(
    make, tmp_path: Path, clock: Clock, frozen: bool
) -> None:
    beat = tmp_path / "beat"
    process = make("import time; time.sleep(600)", heartbeat=beat, heartbeat_timeout_seconds=20.0)
    process.start()
    first = process.pid
    assert first is not None
    if frozen:
        os.kill(first, signal.SIGSTOP)
    clock.now += 15.0
    assert process.keep_running() is None, "it may take that long to start"
    beat.write_text(repr(clock.now))
    clock.now += 15.0
    assert process.keep_running() is None, "its last sign of life is not old"
    clock.now += 10.0
    assert process.keep_running() == "example has given no sign of life for 25 s and is killed"
    happened: list[str] = []

    def started_again() -> bool:
        clock.now += 1.0
        if said := process.keep_running():
            happened.append(said)
        return process.restarts == 1 and process.is_running

    wait_for(started_again)
    assert happened[-1] == "example ended (SIGKILL), restarting"
    assert is_gone(first)


#: Writes to its file at SIGHUP, and ends cleanly.
SERVER = """
import pathlib, signal, sys, time
said = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGHUP, lambda *_: said.write_text("renewed its workers"))
said.write_text("serves")
while True:
    time.sleep(0.01)
"""


def supervisor_of(
    tmp_path: Path, compiler: str, is_ready: Callable[[], bool] = lambda: True, **processes: ManagedProcess
) -> Supervisor:
    """Return a supervisor that has started while the compiler is still running."""
    (tmp_path / "run").mkdir()
    supervisor = Supervisor(PlatformSettings(data=tmp_path), Progress())
    supervisor._processes.update({name.replace("_", "-"): process for name, process in processes.items()})
    supervisor._compiling_meanwhile = OneShot(
        "the compilation", [sys.executable, "-S", "-c", compiler], {}, tmp_path / "compile.log"
    )
    planner = processes["celery_planner"].specification
    supervisor._compiled_planner = replace(planner, name="celery-planner", is_ready=is_ready)
    return supervisor


def test_the_planner_restarts_once_its_machine_code_is_compiled(make, tmp_path, capsys):
    planner, web = make("import time; time.sleep(600)"), make(SERVER)
    planner.start()
    web.start()
    wait_for((tmp_path / "said").exists)
    before = planner.pid, web.pid
    waits = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'compiled')!r}): time.sleep(0.01)"
    old_works: list[bool] = []

    def is_ready() -> bool:
        old_works.append(planner.is_running)
        return len(old_works) == 3

    supervisor = supervisor_of(tmp_path, waits, is_ready, celery_planner=planner, web=web)
    supervisor._look_at_the_compiler()
    assert supervisor._processes["celery-planner"] is planner, "it is not there yet"

    (tmp_path / "compiled").touch()

    def renewed() -> bool:
        supervisor._look_at_the_compiler()
        return supervisor._processes["celery-planner"] is not planner

    wait_for(renewed)
    successor = supervisor._processes["celery-planner"]
    try:
        assert old_works == [True] * 3, "somebody decides until the new one is ready"
        wait_for(lambda: (tmp_path / "said").read_text() == "renewed its workers")
        assert (planner.is_running, successor.is_running, web.pid) == (False, True, before[1])
        assert "compiled" in capsys.readouterr().out
    finally:
        successor.finish(grace_seconds=0.0)


def test_without_machine_code_the_planner_runs_on_with_a_warning(make, tmp_path, capsys):
    planner = make("import time; time.sleep(600)")
    planner.start()
    before = planner.pid
    supervisor = supervisor_of(tmp_path, "raise SystemExit('no compiler here')", celery_planner=planner)

    said = ""

    def told() -> bool:
        nonlocal said
        supervisor._look_at_the_compiler()
        said += capsys.readouterr().out
        return bool(said)

    wait_for(told)
    assert "longer than they should" in said
    assert (planner.pid, planner.is_running) == (before, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may put nothing before the rest")
@pytest.mark.parametrize(("comes_first", "niceness"), [(True, -5), (False, 0)])
def test_prioritised_processes_and_their_children_get_their_niceness(
    make: Callable[..., ManagedProcess], tmp_path: Path, comes_first: bool, niceness: int
) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    expected = niceness if comes_first else before
    waits = f"import os, time\nwhile os.getpriority(os.PRIO_PROCESS, 0) != {expected}: time.sleep(0.01)\n"
    process = make(waits + WITH_CHILD, comes_first=comes_first)
    process.start()
    wait_for((tmp_path / "said").exists)
    pids = [int(pid) for pid in (tmp_path / "said").read_text().split()]
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in pids] == [expected] * 2
    groups = [Path(f"/proc/{pid}/autogroup") for pid in pids]
    if comes_first and groups[0].exists():
        assert [group.read_text().split()[-1] for group in groups] == [str(niceness)] * 2
