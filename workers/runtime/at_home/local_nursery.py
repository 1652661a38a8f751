"""Starts worker processes without importing PyTorch each time: one process imports it and forks the workers.

A forked worker runs the same `main` as one started from the command line, from the same staged packages.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from punctual.randomness import HASH_SEED


class ForkedWorker:
    """A worker process forked by the nursery, with the interface that a local agent needs.

    It is identified by number, since process ids are reused.
    """

    def __init__(self, nursery: Nursery, number: int, pid: int) -> None:
        self._nursery = nursery
        self._number = number
        self.pid = pid

    def poll(self) -> int | None:
        """Return the exit code; None while the worker runs."""
        return self._nursery.exit_codes.get(self._number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the worker's end; return the exit code."""
        with self._nursery.changed:
            if not self._nursery.changed.wait_for(lambda: self.poll() is not None, timeout):
                raise subprocess.TimeoutExpired("worker", timeout or 0)
        return self._nursery.exit_codes[self._number]

    def kill(self) -> None:
        """End the worker with SIGKILL."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it may have ended in between
                os.kill(self.pid, signal.SIGKILL)


class Nursery:
    """A process that has imported PyTorch and forks workers on request."""

    def __init__(self, packages: Path) -> None:
        self.changed = threading.Condition()
        #: Exit codes of ended workers, by number.
        self.exit_codes: dict[int, int] = {}
        #: Process ids of all workers, by number.
        self._born: dict[int, int] = {}
        self._asking = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(packages),
                "OMP_NUM_THREADS": "1",
                "PYTHONHASHSEED": HASH_SEED,
            },
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start_worker(self, box: Path, _environment: Mapping[str, str]) -> ForkedWorker:
        """Fork a worker for `box`."""
        assert self._process.stdin is not None
        with self._asking, self.changed:
            number = len(self._born)
            self._process.stdin.write(json.dumps({"box": str(box), "number": number}).encode() + b"\n")
            self._process.stdin.flush()
            assert self.changed.wait_for(lambda: number in self._born, 60), "the nursery does not answer"
            return ForkedWorker(self, number, self._born[number])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            news: dict[str, Any] = json.loads(line)
            with self.changed:
                if "born" in news:
                    self._born[news["born"]] = news["pid"]
                else:
                    self.exit_codes[news["died"]] = news["code"]
                self.changed.notify_all()

    def close(self) -> None:
        """End the nursery; its workers must have ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # An explicit message, as a forked process may hold the pipe open.
        self._process.stdin.write(b'{"box": null}\n')
        self._process.stdin.close()
        self._process.wait(60)
        self._reader.join(20)
        self._process.stdout.close()


def _fork_worker(box: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    log = os.open(box.parent / f"{box.name}.log", os.O_WRONLY | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.chdir(box)
    from workers.runtime.__main__ import main

    main(["--box", str(box)])
    return 0


def serve() -> None:
    """Run the nursery's loop: fork on request, report ended workers."""
    import torch._dynamo  # noqa: F401

    import workers.runtime.profiling  # noqa: F401

    def tell(**news: int) -> None:
        sys.stdout.write(json.dumps(news) + "\n")
        sys.stdout.flush()

    requests = open(0, "rb", buffering=0)  # noqa: SIM115
    living: dict[int, int] = {}
    asked = True
    while asked or living:
        readable, _, _ = select.select([requests] if asked else [], [], [], 0.02)
        if readable:
            line = requests.readline()
            request: dict[str, Any] = json.loads(line) if line else {"box": None}
            asked = request["box"] is not None
            if asked:
                pid = _fork_worker(Path(request["box"]))
                living[request["number"]] = pid
                tell(born=request["number"], pid=pid)
        for number, pid in list(living.items()):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                del living[number]
                tell(died=number, code=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve()
    # A regular shutdown of PyTorch takes seconds and is not needed.
    os._exit(0)
