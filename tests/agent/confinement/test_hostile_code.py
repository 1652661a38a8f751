"""User code attacks its surroundings in the real sandbox, under an agent of root and of other users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.agent.confinement.test_sandbox import (
    ORDINARY_USER,
    ROOT,
    SYSTEM_PYTHON,
    needs_namespaces,
    needs_root,
    needs_system_python,
)
from tests.agent.conftest import PROJECT, RunningAgent, wait_until
from tests.agent.fake_control_plane import FakeControlPlane, generation
from workers.agent.machine.resource_limits import MEBIBYTE, PREFIX, usable_groups
from workers.agent.processes.worker_processes import ExitStatus, read_exit

#: A user of this test process only: when a worker ends, all processes of its user are killed.
FIRST_USER = 54400 + 10 * (os.getpid() % 500)
WORKER_USER = FIRST_USER + 1

#: Stands in for the agent: makes a worker's folder, starts its launcher and waits for its end.
HARNESS = """
import json, sys
asked = json.loads(sys.argv[1])
sys.path.insert(0, asked["code"])
from pathlib import Path
from workers.agent.machine.clock import boot_time_seconds
from workers.agent.machine.resource_limits import ResourceLimits
from workers.agent.confinement.sandbox import Sandbox
from workers.agent.processes.worker_processes import launch, make_folder, write_lease
folder = Path(asked["folder"])
box = make_folder(folder, asked["user_id"])
write_lease(folder, boot_time_seconds() + 120)
inside = "/box" if asked["mode"] == "namespaces" else str(box)
limits = None if asked["limits"] is None else ResourceLimits.from_json(asked["limits"])
sandbox = Sandbox(asked["mode"], str(box), inside, asked["user_id"],
                  first_user_id=asked["first_user_id"], limits=limits)
handle = launch(folder, command=[asked["python"], "-c", asked["script"]], environment={}, nice=0,
                log_limit_bytes=1_000_000, sandbox=sandbox)
handle.wait(100)
"""


@dataclass
class Place:
    """A folder in which user code runs, and the way in which an agent confines it."""

    folder: Path
    ordinary: bool
    mode: str
    code: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, script: str, limits: dict[str, Any] | None = None) -> Path:
        """Start the script as a worker; returns the worker's folder."""
        # Control groups are named after the worker, for all processes of the machine.
        folder = self.folder / "workers" / f"{name}-{os.getpid()}"
        becomes_another = ROOT and not self.ordinary
        request = {
            "code": str(self.code),
            "folder": str(folder),
            "user_id": WORKER_USER + len(self.processes) if becomes_another else None,
            "first_user_id": FIRST_USER if becomes_another else None,
            "mode": self.mode,
            "python": SYSTEM_PYTHON,
            "script": script,
            "limits": limits,
        }
        user: dict[str, Any] = {}
        if ROOT and self.ordinary:
            user = {"user": ORDINARY_USER, "group": ORDINARY_USER, "extra_groups": []}
        command = [SYSTEM_PYTHON, "-c", HARNESS, json.dumps(request)]
        self.processes.append(subprocess.Popen(command, cwd="/", **user))
        return folder

    def run(self, name: str, script: str, limits: dict[str, Any] | None = None) -> tuple[ExitStatus, str]:
        """Run the script as a worker to its end; return its exit and its output."""
        folder = self.start(name, script, limits)
        return self.end_of(folder), (folder / "worker.log").read_text()

    def end_of(self, folder: Path) -> ExitStatus:
        def ended() -> ExitStatus | None:
            assert all((process.poll() or 0) <= 0 for process in self.processes), (
                "the process that starts it has failed"
            )
            return read_exit(folder)

        status = wait_until(ended, f"{folder.name} has ended", 100.0)
        assert isinstance(status, ExitStatus)
        return status

    def check_neighbour(self, folder: Path) -> None:
        """Check that the neighbour ran all the time and was not affected."""
        assert read_exit(folder) is None, (folder / "worker.log").read_text()
        (folder / "box/in/enough").touch()
        assert self.end_of(folder).code == 0, (folder / "worker.log").read_text()
        assert "done" in (folder / "worker.log").read_text()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for path in self.folder.glob("workers/*/lease"):
            path.write_text("0.0")
        for path in self.folder.glob("workers/*"):
            if (path / "launcher.json").exists():
                self.end_of(path)


def make_place(folder: Path, *, ordinary: bool, mode: str) -> Place:
    # An ordinary user must be able to read the agent's code and to write to the workers' folder.
    for above in reversed([folder, *folder.parents][:3]):
        above.chmod(0o755)
    code = folder / "code"
    for package in ("punctual", "workers/agent"):
        shutil.copytree(PROJECT / package, code / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "workers/__init__.py", code / "workers/__init__.py")
    (folder / "workers").mkdir(mode=0o711)
    if ROOT and ordinary:
        os.chown(folder / "workers", ORDINARY_USER, ORDINARY_USER)
    return Place(folder, ordinary, mode, code)


ROOTS = pytest.param((False, "namespaces"), id="roots-namespaces", marks=[needs_root, needs_namespaces])
ORDINARY = pytest.param((True, "namespaces"), id="an-ordinary-users-namespaces", marks=needs_namespaces)
ANOTHER = pytest.param((False, "user"), id="another-user", marks=needs_root)


@pytest.fixture(params=[ROOTS, ORDINARY, ANOTHER])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Return a place for each way of confinement that gives guarantees."""
    ordinary, mode = request.param
    created = make_place(tmp_path, ordinary=ordinary, mode=mode)
    yield created
    created.close()


pytestmark = needs_system_python

#: Tries everything on every process that it sees, except itself, and prints what succeeded.
LOOK_AROUND = """
import ctypes, json, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.syscall.restype = ctypes.c_long

def allowed(action):
    try:
        action()
        return True
    except OSError:
        return False

def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")

class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

def read_memory(pid):
    taken = ctypes.create_string_buffer(8)
    local, remote = Vector(ctypes.addressof(taken), 8), Vector(id(libc), 8)
    call(libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))

def read_maps(pid):
    if not open(f"/proc/{pid}/maps").read():  # the kernel's own threads have none
        raise OSError("nothing")

def take_descriptor(pid):
    descriptor = os.pidfd_open(pid)
    for number in range(64):
        if libc.syscall(438, descriptor, number, 0) >= 0:
            return
    raise OSError("none")

def try_all(pid):
    return {
        "memory": allowed(lambda: open(f"/proc/{pid}/mem", "rb").close()),
        "writing its memory": allowed(lambda: open(f"/proc/{pid}/mem", "r+b").close()),
        "maps": allowed(lambda: read_maps(pid)),
        "environment": allowed(lambda: open(f"/proc/{pid}/environ", "rb").read()),
        "descriptors": allowed(lambda: os.listdir(f"/proc/{pid}/fd")),
        "a descriptor": allowed(lambda: os.open(f"/proc/{pid}/fd/1", os.O_RDONLY)),
        "root": allowed(lambda: os.listdir(f"/proc/{pid}/root/")),
        "current folder": allowed(lambda: os.listdir(f"/proc/{pid}/cwd/")),
        "reading by the kernel": allowed(lambda: read_memory(pid)),
        "a descriptor by the kernel": allowed(lambda: take_descriptor(pid)),
        "seizing": allowed(lambda: call(libc.ptrace(0x4206, pid, None, None))),
    }

mine = os.getpid()
def others():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != mine]
own = {}
for number in os.listdir("/proc/self/fd"):
    try:
        own[number] = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        pass
found = {str(pid): try_all(pid) for pid in others()}
print(json.dumps({"others": found, "own": own, "user": os.getuid(), "group": os.getpgid(0),
                  "first": os.stat("/proc/1").st_uid, "pid": mine}), flush=True)
# With every right in a user namespace of its own making.
if libc.unshare(0x10000000) == 0:
    print(json.dumps({str(pid): try_all(pid) for pid in others()}), flush=True)
else:
    print("{}", flush=True)
if os.path.isdir("/box"):
    for number in (9, 15, 19):
        allowed(lambda: os.kill(1, number))
print("alive", flush=True)
"""


def test_a_worker_cannot_inspect_other_processes(place: Place) -> None:
    status, output = place.run("spy", LOOK_AROUND)
    assert (status.code, status.reason) == (0, "exited"), output
    first, second, last = output.splitlines()
    report = json.loads(first)
    assert report["others"]
    opened = {
        pid: [actions for actions, worked in results.items() if worked]
        for pid, results in report["others"].items()
    }
    opened |= {
        f"{pid} from a namespace": [actions for actions, worked in results.items() if worked]
        for pid, results in json.loads(second).items()
    }
    assert not {pid: actions for pid, actions in opened.items() if actions}
    assert last == "alive"
    if place.mode == "namespaces":
        assert set(report["others"]) == {"1"}
        assert report["pid"] == 2
    # Only the worker's own output is open: neither the log file nor the pipe that reports its end.
    kinds = sorted(target.partition(":")[0] for number, target in report["own"].items() if int(number) < 3)
    assert kinds == ["/dev/null", "pipe", "pipe"]
    assert report["own"]["1"] == report["own"]["2"]
    assert not [
        target
        for number, target in report["own"].items()
        if int(number) > 2 and not target.startswith("/proc/")
    ]


def test_workers_cannot_read_each_others_files(place: Place) -> None:
    folder = place.start("other", "import time; print('secret', flush=True); time.sleep(100)")
    wait_until(
        lambda: (folder / "worker.log").exists() and (folder / "worker.log").read_text(),
        "the other worker runs",
    )
    check_first_process(place, folder)
    check_files(place, folder)


def check_first_process(place: Place, folder: Path) -> None:
    """Check that the worker's first process exposes nothing of value."""
    first = json.loads((folder / "launcher.json").read_text())["worker_pid"]

    def descriptors() -> list[tuple[str, str]]:
        """Return the open descriptors by number."""
        return sorted((os.readlink(entry.path), entry.name) for entry in os.scandir(f"/proc/{first}/fd"))

    if ROOT:
        wait_until(lambda: len(descriptors()) == 5, "it has closed all other descriptors")
        *nothing, (lease, number), (pipe, _) = descriptors()
        assert [target for target, _ in nothing] == ["/dev/null"] * 3
        assert pipe.startswith("pipe:")
        # The lease file says until when the worker may live; its descriptor must be read-only.
        assert Path(lease).name == "lease"
        flags = Path(f"/proc/{first}/fdinfo/{number}").read_text().split("flags:")[1].split()[0]
        assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY
        environment = Path(f"/proc/{first}/environ").read_bytes()
        assert set(environment.decode().split("\0")) <= {"PATH=" + os.defpath, "", "LC_CTYPE=C.UTF-8"}
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{first}/status").read_text().splitlines())
    assert status["CapEff"] == status["CapPrm"] == "0" * 16
    assert status["NoNewPrivs"] == "1"
    if ROOT and not place.ordinary:
        assert set(status["Uid"].split()) == {str(FIRST_USER)}, "neither root's nor the worker's"


def check_files(place: Place, other: Path) -> None:
    """Check that no files of other users are visible."""
    (other / "box/in").chmod(0o755)
    tried = [
        str(other / name)
        for name in ("worker.log", "launch.json", "lease", "box/home/x", "box/out/x", "launcher.log")
    ]
    script = f"""
def works(path, mode):
    try:
        open(path, mode).close()
        return True
    except OSError:
        return False
print([path for path in {tried!r} if works(path, "rb") or works(path, "ab")])
"""
    status, output = place.run("thief", script)
    assert status.code == 0
    if place.mode == "namespaces":
        assert output == "[]\n"
    else:
        # Without namespaces, names may be visible, but nothing is writable and logs are private.
        assert "worker.log" not in output
    assert "secret" in (other / "worker.log").read_text()


#: Forks without end. Every child forks on, so there is more than one loop, and none is a child of the first
#: process.
FORK_BOMB = """
import os, time
print("up", flush=True)
time.sleep(0.5)
if os.fork():
    time.sleep(1000)
if os.fork():
    os._exit(0)
os.setsid()
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
"""
#: Code that needs its own processes and memory until a file tells it to end.
NEIGHBOUR = """
import os, time
done = 0
while not done or not os.path.exists("../in/enough"):
    child = os.fork()
    if child == 0:
        held = bytearray(1 << 20)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    done += 1
    time.sleep(0.02)
print("done", done)
"""


GROUPS, WATCHDOG = "control groups", "a watchdog"


def limits(watched: str, *, memory_mebibytes: int = 2048, processes: int = 1024) -> dict[str, Any]:
    return {
        "memory_bytes": memory_mebibytes * MEBIBYTE,
        "processes": processes,
        "groups": usable_groups() if watched == GROUPS else {},
    }


def needs_groups(place: Place, watched: str, controller: str) -> None:
    if watched == GROUPS and (place.ordinary or controller not in usable_groups()):
        pytest.skip(f"no control groups for {controller} can be made here")


def combined(*quick: tuple[Any, str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Parametrize a test by all places and both ways of watching; all combinations but ``quick`` are slow."""
    cases = [
        pytest.param(
            *place.values,
            watched,
            id=f"{place.id}-{watched}",
            marks=[*place.marks, *([] if (place, watched) in quick else [pytest.mark.slow])],
        )
        for place in (ROOTS, ORDINARY, ANOTHER)
        for watched in (GROUPS, WATCHDOG)
    ]
    return pytest.mark.parametrize(("place", "watched"), cases, indirect=["place"])


@combined((ROOTS, GROUPS), (ORDINARY, WATCHDOG), (ANOTHER, WATCHDOG))
def test_a_fork_bomb_ends_only_its_own_worker(place: Place, watched: str) -> None:
    needs_groups(place, watched, "pids")
    neighbour = place.start("neighbour", NEIGHBOUR, limits(watched))
    wait_until((neighbour / "launcher.json").exists, "the neighbour is there")
    status, output = place.run("bomb", FORK_BOMB, limits(watched, processes=200))
    assert output.startswith("up"), status
    assert status.reason == "processes_exceeded"
    assert "more than 200 processes" in status.message
    place.check_neighbour(neighbour)


#: Takes memory in a child process, as a data loader does, and survives that child's kill.
GLUTTON = """
import os, time
print("up", flush=True)
held = []
if os.fork() == 0:
    while True:
        held.append(b"x" * (8 << 20))
        time.sleep(0.01)
os.wait()
raise SystemExit("my loader was killed")
"""


@combined((ROOTS, GROUPS), (ORDINARY, WATCHDOG), (ROOTS, WATCHDOG))
def test_exceeding_the_memory_limit_is_the_reported_reason(place: Place, watched: str) -> None:
    needs_groups(place, watched, "memory")
    neighbour = place.start("neighbour", NEIGHBOUR, limits(watched))
    status, output = place.run("glutton", GLUTTON, limits(watched, memory_mebibytes=160))
    assert output.startswith("up"), status
    assert status.reason == "memory_exceeded"
    assert "more than 160 MiB of memory" in status.message
    place.check_neighbour(neighbour)


@combined((ROOTS, GROUPS), (ROOTS, WATCHDOG))
def test_a_worker_within_its_limits_is_undisturbed(place: Place, watched: str) -> None:
    needs_groups(place, watched, "memory")
    script = (
        "import os\nheld = bytearray(60 << 20)\nfor _ in range(20):\n os.fork() or os._exit(0)\nprint('fine')"
    )
    status, output = place.run("modest", script, limits(watched, memory_mebibytes=160, processes=64))
    assert (status.code, status.reason, output) == (0, "exited", "fine\n")


@needs_root
def test_control_groups_are_removed_with_their_workers(tmp_path: Path) -> None:
    groups = usable_groups()
    if not groups:
        pytest.skip("no control groups can be made here")
    place = make_place(tmp_path, ordinary=False, mode="namespaces")
    folder = place.start("neighbour", NEIGHBOUR, limits("control groups"))
    created = [Path(parent) / f"{PREFIX}{folder.name}" for parent in groups.values()]
    wait_until((folder / "launcher.json").exists, "it is there")
    assert all(group.exists() for group in created)
    place.check_neighbour(folder)
    wait_until(lambda: not any(group.exists() for group in created), "none is left")
    place.close()


def test_shared_memory_is_limited(place: Place) -> None:
    if place.mode != "namespaces":
        pytest.skip("/dev/shm is the server's there")
    script = """
with open("/dev/shm/much", "wb") as file:
    try:
        for _ in range(200):
            file.write(bytes(1 << 20))
            file.flush()
    except OSError as error:
        print(error.errno)
"""
    status, output = place.run("hoarder", script, limits("a watchdog", memory_mebibytes=160))
    assert (status.code, output) == (0, "28\n")


@needs_namespaces
@pytest.mark.slow
def test_job_over_its_memory_limit_fails_and_its_neighbour_trains_on(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.settings |= {"worker_memory_bytes": 256 * MEBIBYTE}
    agent.start()
    plane.want(
        generation("neighbour", workers=[{"rank": 0, "gpu_index": 1}]),
        generation("hoarder", hyperparameters={"hoard": True}),
    )
    failure = wait_until(lambda: plane.events_of("failed"), "the failure is reported")[0]
    assert (failure["job"], failure["reason"]) == ("hoarder", "memory_exceeded")
    assert "more than 256 MiB of memory" in failure["message"]
    wait_until(lambda: plane.phase("hoarder") == "exited", "it is gone")
    assert plane.phase("neighbour") == "training"
    assert [event["job"] for event in plane.events_of("failed")] == ["hoarder"]


def test_too_little_memory_for_any_worker_is_refused_in_one_line(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.settings |= {"worker_memory_bytes": 1000}
    agent.start()
    assert agent.wait_exit() == 2
    assert "worker_memory_bytes must be at least 268435456, not 1000" in agent.log
