"""The launcher: starts one worker in its sandbox, outlives the agent, and kills the worker when its lease
ends. The first process in the sandbox does so too, because the launcher may be frozen along with the agent.

    python -I -S -c "..." WORKER_FOLDER        (see `launcher_command`)

It stays outside the sandbox, so the worker can neither see nor stop it; the worker dies with it. It needs
only the standard library, and reads nothing that the worker can write. An agent's nursery
(`nursery_process.py`) forks launchers instead of starting this program. The only difference is how a process
in the sandbox becomes the worker.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from workers.agent.confinement.sandbox import Sandbox, enter, give_up_privileges, seal, separate_processes
from workers.agent.machine import clock, linux
from workers.agent.machine.durable_files import read_json, write_json
from workers.agent.machine.process_tree import kill_descendants, kill_user
from workers.agent.machine.resource_limits import WorkerResources

# Timers do not advance while a machine is suspended, so check the lease at least this often.
LONGEST_WAIT_SECONDS = 1.0
#: A lease is overwritten while others read it: an expired one is read again after this.
READ_AGAIN_SECONDS = 0.005
#: Interval of checks of a worker's resources.
RESOURCES_SECONDS = 0.25
READ_BYTES = 65536
LEASE_READ_BYTES = 64

#: Turns the calling process, in the sandbox, into the worker of launch.json. Does not return; raises OSError.
BecomeWorker = Callable[[Mapping[str, Any]], NoReturn]


def execute(launch: Mapping[str, Any]) -> NoReturn:
    """Become the worker by executing its command. Raises OSError."""
    os.execve(launch["command"][0], launch["command"], launch["environment"])


def launcher_command(interpreter: str, source_root: Path, worker_folder: Path) -> list[str]:
    """Return the command that starts a launcher; `source_root` contains the package `workers`."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from workers.agent.processes.launcher import main; "
        "main(sys.argv[2])"
    )
    return [interpreter, "-I", "-S", "-c", code, str(source_root), str(worker_folder)]


class Lease:
    """A worker's lease, which the agent rewrites repeatedly."""

    def __init__(self, folder: Path) -> None:
        try:
            self.descriptor = os.open(folder / "lease", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.descriptor = -1  # unreadable: treated as expired

    def left_seconds(self) -> float:
        """Return the remaining time; a lease that cannot be read has expired."""
        try:
            return float(os.pread(self.descriptor, LEASE_READ_BYTES, 0)) - clock.boot_time_seconds()
        except (OSError, ValueError):
            return -math.inf

    def is_over(self) -> bool:
        """Whether the lease has expired. A value may be read while it is written, so it is read twice."""
        if self.left_seconds() > 0.0:
            return False
        time.sleep(READ_AGAIN_SECONDS)
        return self.left_seconds() <= 0.0


class LimitedLog:
    """A worker's output in a file that stops growing at a limit, so that it cannot fill the disk."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._left_bytes = limit_bytes - os.fstat(self._descriptor).st_size

    def write(self, output: bytes) -> None:
        """Append `output`, up to the limit."""
        if self._left_bytes <= 0:
            return
        try:
            os.write(self._descriptor, output[: self._left_bytes])
            self._left_bytes -= len(output)
            if self._left_bytes <= 0:
                os.write(
                    self._descriptor, b"\n[the log is full: further output of this worker is discarded]\n"
                )
        except OSError:
            # A full disk must not end the launcher and its worker, so the output is lost instead.
            self._left_bytes = 0


class Launcher:
    """The life of one worker: start, output, lease, end."""

    def __init__(self, folder: Path, become_worker: BecomeWorker = execute) -> None:
        self.folder = folder
        self.become_worker = become_worker
        self.launch: dict[str, Any] = read_json(folder / "launch.json")
        self.sandbox = Sandbox.from_json(self.launch["sandbox"])
        self.log = LimitedLog(folder / "worker.log", self.launch["log_limit_bytes"])
        self.kill_reason: str | None = None
        self.kill_message: str | None = None
        self.stop_asked = False
        limits = self.sandbox.limits
        self.resources = None if limits is None else WorkerResources(limits, folder.name)
        self._looked_at = 0.0
        self._wake_read, self._wake_write = socket.socketpair()
        self._lease = Lease(folder)

    def run(self) -> None:
        """Start the worker and watch it until it ends; then write exit.json."""
        self._catch_signals()
        output_read, output_write = os.pipe()
        status_read, status_write = os.pipe()
        go_read, go_write = os.pipe()
        if self.sandbox.mode == "namespaces":
            try:
                separate_processes()
            except OSError as error:
                self._write_exit(
                    {"code": 127, "signal": None, "message": f"no PID namespace: {error}"}, "start_failed"
                )
                self._close_resources()
                return
        else:
            linux.process_control(linux.PR_SET_CHILD_SUBREAPER, 1)
        child = os.fork()
        if child == 0:
            for descriptor in (output_read, status_read, go_write):
                os.close(descriptor)
            self._be_first_process(output_write, status_write, go_read)
        for descriptor in (output_write, status_write, go_read):
            os.close(descriptor)
        write_json(
            self.folder / "launcher.json",
            {
                "pid": os.getpid(),
                "started": clock.process_start_ticks(os.getpid()),
                "worker_pid": child,
                "boot": clock.machine_boot_id(),
            },
        )
        with contextlib.suppress(OSError):
            seal()  # without namespaces the worker could see it
        if self.resources is not None:
            self.resources.take(child)
        os.write(go_write, b"g")
        status = self._watch(child, output_read, status_read)
        if status.get("code") != 0:
            self._look_at_resources()  # why the kernel killed it
        if status.pop("lease_ended", False) and self.kill_reason is None:
            self.kill_reason = "stopped" if self.stop_asked else "lease_ended"
        if self.kill_message is not None:
            status["message"] = self.kill_message
        self._write_exit(status, self.kill_reason or ("start_failed" if status.get("message") else "exited"))
        self._close_resources()

    def _catch_signals(self) -> None:
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._ask_stop)

    def _ask_stop(self, number: int, frame: object) -> None:
        self.stop_asked = True

    def _watch(self, child: int, output: int, status_pipe: int) -> dict[str, Any]:
        os.set_blocking(output, False)
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(self._wait_seconds()):
                    if key.fd == output and not self._copy_output(output):
                        selector.unregister(output)
                    elif key.fd == self._wake_read.fileno():
                        self._wake_read.recv(READ_BYTES)
                ended = self._reap(child)
                if ended is None and self.kill_reason is None:
                    self._kill_if_due(child)
                    ended = self._reap(child)
                if ended is not None:
                    self._end_descendants()
                    while self._copy_output(output):
                        pass
                    return _read_status(status_pipe, ended)

    def _wait_seconds(self) -> float:
        longest = LONGEST_WAIT_SECONDS if self.resources is None else RESOURCES_SECONDS
        left = max(0.0, self._lease.left_seconds())
        return min(longest, left) if self.kill_reason is None else LONGEST_WAIT_SECONDS

    def _look_at_resources(self) -> None:
        """Record whether the worker has exceeded its limits. May cost milliseconds, so not for every line of
        output."""
        self._looked_at = clock.boot_time_seconds()
        exceeded = None if self.resources is None else self.resources.exceeded()
        if self.resources is not None and exceeded is not None and self.kill_reason is None:
            self.kill_reason = exceeded
            self.kill_message = self.resources.limits.message(exceeded)

    def _close_resources(self) -> None:
        if self.resources is not None:
            self.resources.close()

    def _kill_if_due(self, child: int) -> None:
        if self.stop_asked:
            self.kill_reason = "stopped"
        elif self._lease.is_over():
            self.kill_reason = "lease_ended"
        elif clock.boot_time_seconds() >= self._looked_at + RESOURCES_SECONDS:
            self._look_at_resources()
        if self.kill_reason is None:
            return
        # The end of a PID namespace's first process ends all others, however they hide.
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)

    def _reap(self, child: int) -> int | None:
        """Collect ended children; return the wait status of `child` if it has ended."""
        found = None
        while True:
            try:
                process_id, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if process_id == 0:
                return found
            if process_id == child:
                found = status

    def _end_descendants(self) -> None:
        if self.sandbox.mode == "user" and self.sandbox.user_id is not None:
            kill_user(self.sandbox.user_id)
        if self.sandbox.mode != "namespaces":
            kill_descendants(os.getpid())

    def _copy_output(self, output: int) -> bool:
        """Copy the worker's output to its log; return False if there is none."""
        try:
            text = os.read(output, READ_BYTES)
        except BlockingIOError:
            return False
        if text:
            self.log.write(text)
        return bool(text)

    def _be_first_process(self, output: int, status_pipe: int, go: int) -> NoReturn:
        """In the child: enter the sandbox, start the worker, wait for it, report its end to the launcher."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            # Wait until the launcher has recorded this process: an unrecorded process cannot be fenced.
            if os.read(go, 1) != b"g":
                os._exit(127)
            for target in (1, 2):
                os.dup2(output, target)
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            # A warm worker's start must not slow down training workers; its priority is restored on
            # assignment. An ordinary user whose agent has a low priority cannot raise it: workers then keep
            # the agent's.
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, self.launch["nice"])
            enter(self.sandbox, str(self.folder / "root"))
            # Before the worker exists, so that it can never look into this process.
            seal()
            _die_with_the_launcher(go)
            worker = self._fork_worker(status_pipe)
            give_up_privileges(self.sandbox.first_user_id)
            _die_with_the_launcher(go)  # again, because the change of user has cleared it
            _close_all_but(status_pipe, self._lease.descriptor)
            _wait_and_tell(worker, status_pipe, self._lease)
        except BaseException as error:  # noqa: BLE001 - a forked child must never return into the launcher's code
            message = f"sandbox: {error}"
            os.write(status_pipe, json.dumps({"code": 127, "signal": None, "message": message}).encode())
            os._exit(127)

    def _fork_worker(self, status_pipe: int) -> int:
        """Fork the process that runs the worker, under its own user. It must contain nothing of this
        process."""
        worker = os.fork()
        if worker == 0:
            try:
                give_up_privileges(self.sandbox.user_id)
                linux.process_control(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
                os.chdir(f"{self.sandbox.box_inside}/home")
                self.become_worker(self.launch)
            except BaseException as error:  # noqa: BLE001 - as above
                message = f"cannot start {self.launch['command'][0]}: {error}"
                os.write(status_pipe, json.dumps({"code": 127, "signal": None, "message": message}).encode())
                os._exit(127)
        return worker

    def _write_exit(self, status: dict[str, Any], reason: str) -> None:
        write_json(self.folder / "exit.json", {"message": None, **status, "reason": reason})


def _die_with_the_launcher(go: int) -> None:
    """Make the kernel end this process with the launcher. If that is already dead, `go` has no writer."""
    linux.process_control(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.set_blocking(go, False)
    with contextlib.suppress(BlockingIOError):
        os.read(go, 1)
        os._exit(127)


def _close_all_but(*kept: int) -> None:
    """Close everything but the lease and the status pipe, which are all that the first process needs."""
    null = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    first = 3
    for descriptor in sorted(one for one in kept if one >= first):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _wait_and_tell(worker: int, status_pipe: int, lease: Lease) -> NoReturn:
    """As the first process: collect orphans until the worker has ended, and report how it ended.

    When the lease is over, this process ends, and the kernel ends the worker with it, in case the launcher
    and the agent are frozen.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while (status := _status_of(worker)) is None:
        if lease.is_over():
            ended: dict[str, Any] = {"code": None, "signal": int(signal.SIGKILL), "lease_ended": True}
            break
        signal.sigtimedwait({signal.SIGCHLD}, min(LONGEST_WAIT_SECONDS, max(0.0, lease.left_seconds())))
    else:
        code = os.waitstatus_to_exitcode(status)
        ended = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}
    os.write(status_pipe, json.dumps(ended).encode())
    os._exit(0)


def _status_of(worker: int) -> int | None:
    """Collect ended processes; return the worker's wait status if it has ended."""
    while True:
        process_id, status = os.waitpid(-1, os.WNOHANG)
        if process_id == worker:
            return status
        if process_id == 0:
            return None


def _read_status(pipe: int, wait_status: int) -> dict[str, Any]:
    """Return how the worker ended, as reported by its first process, else how that process ended."""
    told = os.read(pipe, READ_BYTES)
    if told:
        status: dict[str, Any] = json.JSONDecoder().raw_decode(told.decode())[0]
        return status
    code = os.waitstatus_to_exitcode(wait_status)
    return {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}


def main(worker_folder: str) -> None:
    """Run the launcher of the worker that `worker_folder` describes."""
    Launcher(Path(worker_folder)).run()


if __name__ == "__main__":
    main(sys.argv[1])
