"""The nursery's process: imports PyTorch, then forks a launcher, and so a worker, within milliseconds.

    python -s -P -c "..." SOURCE_ROOT RUNTIME        (see `nursery.py`)

It contains only imported packages: no credential, no descriptor of the agent except its end of one socket,
and nothing of any job. A forked launcher works exactly as one started as a program. Only where that would
execute the interpreter in the sandbox, the process becomes the worker itself, with the environment, search
path and descriptors that the interpreter would have had.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from workers.agent.machine import linux
from workers.agent.processes.launcher import Launcher

REQUEST_BYTES = 65536
#: File of the runtime that names what to import; without it there is nothing to import in advance.
PRELOAD = "workers/runtime/preload.py"


def main(source_root: str, runtime: str) -> NoReturn:
    """Import, confirm on descriptor 0, then fork a launcher for each worker folder named there, until it
    closes."""
    linux.process_control(
        linux.PR_SET_PDEATHSIG, signal.SIGKILL
    )  # ends with the agent; forked launchers continue
    agent = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload = Path(runtime) / PRELOAD
    if preload.exists():
        runpy.run_path(str(preload))
    problem = why_not_to_fork()
    _say(agent, {"problem": problem} if problem else {"ready": True})
    if problem:
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended launchers leave no zombies
    search_path = [entry for entry in sys.path if entry != source_root]
    gc.collect()
    gc.freeze()  # memory that is never collected is never written, so it stays shared
    requests = agent.makefile("rb")
    for line in requests:
        folder = Path(json.loads(line)["folder"])
        launcher = os.fork()
        if launcher == 0:
            requests.close()
            agent.close()
            _be_launcher(folder, search_path)
        _say(agent, {"launcher": launcher})
    os._exit(0)  # an orderly shutdown takes seconds and has no use


def why_not_to_fork() -> str | None:
    """Return why workers forked from this process would fail later, or None."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"importing started {threads - 1} threads, which a forked process would lack"
    # The driver is loaded at the first call to a GPU, and cannot be used in a process forked afterwards.
    if "libcuda.so" in Path("/proc/self/maps").read_text():
        return "importing loaded the GPU's driver, which a forked process could not use"
    return None


def _say(agent: socket.socket, message: Mapping[str, Any]) -> None:
    agent.sendall(json.dumps(message).encode() + b"\n")


def _be_launcher(folder: Path, search_path: list[str]) -> NoReturn:
    """In the fork: set up what the launcher's own program would have, then run it."""
    code = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(folder / "launcher.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.close(nothing)
        os.close(log)
        linux.name_process("launcher")
        Launcher(folder, lambda launch: _be_worker(launch, search_path)).run()
        code = 0
    except BaseException:  # noqa: BLE001 - it must never return into the nursery's loop
        traceback.print_exc()
    os._exit(code)


def _be_worker(launch: Mapping[str, Any], search_path: list[str]) -> NoReturn:
    """In the sandbox, as the worker's user: become `python -P -m MODULE ARGUMENTS`, the command of
    `launch`."""
    command: list[str] = launch["command"]
    module, *arguments = command[command.index("-m") + 1 :]
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    with suppress(OSError):  # executing a program would have reset this
        linux.process_control(linux.PR_SET_DUMPABLE, 1)
    linux.name_process("worker")
    os.environ.clear()
    os.environ.update(launch["environment"])
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *search_path]
    sys.argv[:] = [module, *arguments]
    for name in [
        name
        for name in sys.modules
        if name.partition(".")[0] in ("communication", "emulated_links", "workers", "punctual", "recovery")
    ]:
        del sys.modules[name]  # these are the agent's; the worker's are in its sandbox
    importlib.invalidate_caches()
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGPIPE, signal.SIG_IGN),
        (signal.SIGCHLD, signal.SIG_DFL),
    ):
        signal.signal(number, handler)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    _forget_common_randomness()
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - as an interpreter would end
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)


def _forget_common_randomness() -> None:
    """Seed random generators again, because workers of one nursery must not draw the same numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
