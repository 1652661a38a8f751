"""A worker sees its box and what programs need, and nothing of the platform or of other jobs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.agent.conftest import PROJECT, RunningAgent, process_alive, wait_until
from tests.agent.fake_control_plane import FakeControlPlane, generation
from workers.agent.confinement.sandbox import Sandbox
from workers.agent.machine.clock import boot_time_seconds
from workers.agent.processes.worker_processes import (
    LauncherHandle,
    launch,
    make_folder,
    read_exit,
    write_lease,
)

ROOT = os.geteuid() == 0
# An interpreter that an ordinary user can run; the tests' own may be in root's home.
SYSTEM_PYTHON = "/usr/bin/python3"
ORDINARY_USER = 54321


def namespaces_work() -> bool:
    return (
        subprocess.run(["unshare", "-Urpm", "--fork", "true"], capture_output=True, check=False).returncode
        == 0
    )


needs_namespaces = pytest.mark.skipif(not namespaces_work(), reason="this kernel allows no user namespaces")
needs_root = pytest.mark.skipif(not ROOT, reason="only root can become other users")
needs_system_python = pytest.mark.skipif(
    not Path(SYSTEM_PYTHON).exists(), reason="no interpreter for all users"
)


@needs_namespaces
def test_a_worker_sees_nothing_of_the_platform(agent: RunningAgent, plane: FakeControlPlane) -> None:
    secret = agent.folder / "platform"
    secret.mkdir()
    agent.folder.chmod(0o755)
    (secret / "password").write_text("secret")
    # The secret lies in a readable folder, so that only `hide` can hide it.
    agent.settings |= {"readable": [str(agent.folder)], "hide": [str(secret)]}
    agent.environment = {
        "SECRET_KEY": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "PUNCTUAL_ENROL_TOKEN": "token-1",
    }
    agent.start()
    paths_tried = [
        str(secret),
        str(agent.data),
        str(agent.folder),
        "/run",
        "/var",
        "/root",
        "/home",
        str(PROJECT),
        "/box",
    ]
    plane.want(
        generation("neighbour"),
        generation(hyperparameters={"look": paths_tried}, workers=[{"rank": 0, "gpu_index": 1}]),
    )
    wait_until(lambda: "SEEN" in plane.log_of(), "the worker has printed what it can see")
    visible = json.loads(next(line for line in plane.log_of().splitlines() if line.startswith("SEEN"))[5:])
    paths = visible["paths"]
    assert paths[str(secret)] == []
    assert paths[str(agent.data)] == []
    assert "platform" in paths[str(agent.folder)], "readable folders are visible"
    assert all(paths[path].startswith("error") for path in ("/run", "/var", "/home"))
    assert "workers" not in paths[str(PROJECT)], (
        "only the interpreter's packages of the project's folder are visible"
    )
    assert set(paths["/box"]) >= {"bundle", "in", "out", "home", "tmp", "agent.sock"}
    assert len(visible["processes"]) <= 3, "the sandbox's first process and the worker"
    assert not any("secret" in value or "token" in value for value in visible["environment"].values())
    assert not {"DATABASE_URL", "SECRET_KEY", "PUNCTUAL_ENROL_TOKEN"} & set(visible["environment"])
    assert visible["environment"]["HOME"] == "/box/home"
    assert visible["environment"]["TMPDIR"] == "/box/tmp"
    writable = {path for path, allowed in visible["writable"].items() if allowed}
    assert writable == {"/box/out", "/tmp"}
    assert set(visible["capabilities"]) == {"0" * 16}
    assert visible["no_new_privileges"]
    assert str(PROJECT) not in visible["sys_path"]
    assert visible["sys_path"][0] == "/runtime"
    assert plane.enrolments[0]["inventory"]["sandbox"] == "namespaces"
    if ROOT:
        assert visible["user"] != 0


def launch_script(
    folder: Path, script: str, sandbox_mode: str, *, user: int | None = None, lease_seconds: float = 60.0
) -> LauncherHandle:
    """Run a script in a worker's place, as the current user."""
    box = make_folder(folder, user)
    inside = "/box" if sandbox_mode == "namespaces" else str(box)
    write_lease(folder, boot_time_seconds() + lease_seconds)
    return launch(
        folder,
        command=[SYSTEM_PYTHON, "-c", script],
        environment={"HOME": "/nowhere"},
        sandbox=Sandbox(sandbox_mode, str(box), inside, user),  # type: ignore[arg-type]
        log_limit_bytes=100_000,
        nice=0,
    )


@needs_namespaces
@needs_root
@needs_system_python
def test_an_ordinary_users_agent_uses_namespaces_too(tmp_path: Path) -> None:
    # A copy of the agent's code that an ordinary user can read.
    for folder in reversed([tmp_path, *tmp_path.parents][:3]):
        folder.chmod(0o755)
    for package in ("punctual", "workers/agent"):
        shutil.copytree(PROJECT / package, tmp_path / "code" / package)
    shutil.copy(PROJECT / "workers/__init__.py", tmp_path / "code/workers/__init__.py")
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, ORDINARY_USER, ORDINARY_USER)
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path / "code")!r})
import time
from pathlib import Path
from workers.agent.machine.clock import boot_time_seconds
from workers.agent.confinement.sandbox import Sandbox
from workers.agent.processes.worker_processes import launch, make_folder, write_lease
folder = Path({str(home / "worker")!r})
box = make_folder(folder, None)
write_lease(folder, boot_time_seconds() + 60)
code = "import os; print(os.getpid(), os.getuid(), os.path.exists({str(home)!r}), sorted(os.listdir('/box')))"
handle = launch(folder, command=[{SYSTEM_PYTHON!r}, "-c", code], environment={{}}, nice=0,
                log_limit_bytes=9999,
                sandbox=Sandbox("namespaces", str(box), "/box"))
handle.wait(60)
"""
    subprocess.run(
        [SYSTEM_PYTHON, "-c", script],
        user=ORDINARY_USER,
        group=ORDINARY_USER,
        extra_groups=[],
        cwd="/",
        check=True,
    )
    status = read_exit(home / "worker")
    assert status is not None
    assert (status.code, status.message) == (0, "")
    output = (home / "worker/worker.log").read_text()
    assert output.startswith(f"2 {ORDINARY_USER} False ['data', 'home', 'in', 'out', 'tmp']")


@needs_root
@needs_system_python
def test_another_user_cannot_leave_anything_behind(tmp_path: Path) -> None:
    for folder in reversed([tmp_path, *tmp_path.parents][:3]):
        folder.chmod(0o755)
    secret = tmp_path / "credential.json"
    secret.write_text("secret")
    secret.chmod(0o600)
    script = f"""
import os, sys, time
try:
    open({str(secret)!r}).read()
    print("READ")
except PermissionError:
    print("refused", os.getuid(), flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("../out/daemon", "w").write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
time.sleep(1000)
"""
    folder = tmp_path / "worker"
    launcher = launch_script(folder, script, "user", user=ORDINARY_USER)
    daemon = int(wait_until(lambda: read_text(folder / "box/out/daemon"), "its daemon runs"))
    assert process_alive(daemon)
    write_lease(folder, 0.0)
    status = wait_until(lambda: read_exit(folder), "the lease has ended")
    launcher.wait(60)
    assert status.reason == "lease_ended"
    assert not process_alive(daemon)
    assert (folder / "worker.log").read_text() == f"refused {ORDINARY_USER}\n"


@needs_system_python
def test_without_any_sandbox_descendants_are_still_killed(tmp_path: Path) -> None:
    script = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("../out/daemon", "w").write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
time.sleep(1000)
"""
    folder = tmp_path / "worker"
    launcher = launch_script(folder, script, "none")
    daemon = int(wait_until(lambda: read_text(folder / "box/out/daemon"), "its daemon runs"))
    launcher.ask_to_kill()
    launcher.wait(60)
    assert read_exit(folder) is not None
    assert not process_alive(daemon)


def read_text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@needs_system_python
@pytest.mark.parametrize(
    ("script", "code", "signal"),
    [("raise SystemExit(3)", 3, None), ("import os; os.kill(os.getpid(), 11)", None, 11), ("", 0, None)],
)
def test_the_exit_of_a_worker_is_recorded_exactly(
    tmp_path: Path, script: str, code: int | None, signal: int | None
) -> None:
    launch_script(tmp_path / "worker", script, "none").wait(60)
    status = read_exit(tmp_path / "worker")
    assert status is not None
    assert (status.code, status.signal, status.reason) == (code, signal, "exited")


def test_a_command_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "worker"
    box = make_folder(folder, None)
    write_lease(folder, boot_time_seconds() + 60)
    sandbox = Sandbox("none", str(box), str(box))
    launch(
        folder, command=["/missing/python"], environment={}, sandbox=sandbox, log_limit_bytes=1000, nice=0
    ).wait(60)
    status = read_exit(folder)
    assert status is not None
    assert status.reason == "start_failed"
    assert "cannot start /missing/python" in status.message


def test_an_agent_that_can_confine_nothing_refuses_to_start(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    # An interpreter without a runtime in any sandbox stands for a kernel that forbids sandboxes.
    (agent.runtime / "workers/runtime/__init__.py").write_text("raise RuntimeError('cannot run here')")
    agent.start()
    assert agent.wait_exit() == 2
    assert "workers cannot be confined here" in agent.log
    assert "allow_unsandboxed" in agent.log
    agent.settings["allow_unsandboxed"] = True
    agent.start()
    wait_until(lambda: plane.enrolments, "with the setting it starts")
    assert plane.enrolments[0]["inventory"]["sandbox"] == "none", "and says so"
