"""The agent's side of the nursery: a separate process that forks launchers, so that workers need not import
PyTorch."""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

from punctual.randomness import HASH_SEED
from workers.agent.machine import clock
from workers.agent.processes.runtime_staging import SOURCE_ROOT

logger = logging.getLogger(__name__)

#: Importing takes seconds, or a minute on a very busy machine.
START_SECONDS = 120.0
#: Forking takes milliseconds.
ANSWER_SECONDS = 10.0
#: Pause before an ended nursery is started again.
PAUSE_SECONDS = 30.0

State = Literal["starting", "ready", "unusable"]


class Nursery:
    """Starts the process, requests launchers from it, and restarts it when it ends. For the agent's main
    thread."""

    def __init__(self, runtime: Path) -> None:
        self._runtime = runtime
        self._state: State = "unusable"
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._received = b""
        self._started_at = 0.0
        self._hopeless = False

    def start(self) -> None:
        """Start the process, which begins to import. Does not wait."""
        self._started_at = clock.boot_time_seconds()
        own, its = socket.socketpair()
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); "
            "from workers.agent.processes.nursery_process import main; "
            "main(sys.argv[1], sys.argv[2])"
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-c", code, str(SOURCE_ROOT), str(self._runtime)],
                stdin=its.fileno(),
                cwd="/",
                # One thread, because libraries that start more cannot be forked. No GPU, because the worker's
                # is not known yet.
                env={
                    "PATH": os.defpath,
                    "LANG": "C.UTF-8",
                    "TZ": "UTC",
                    "OMP_NUM_THREADS": "1",
                    "PYTHONHASHSEED": HASH_SEED,
                    "CUDA_VISIBLE_DEVICES": "",
                    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
                },
            )
        except OSError as error:
            own.close()
            self._give_up(f"it cannot be started: {error}")
            return
        finally:
            its.close()
        self._socket, self._received, self._state = own, b"", "starting"

    def look(self) -> State:
        """Check for news and return the nursery's state. While it is "starting", it is worth waiting with a
        new worker."""
        if self._state == "starting":
            self._hear_of_its_start()
        elif self._state == "ready" and self._process is not None and self._process.poll() is not None:
            self._give_up(f"it has ended ({self._process.returncode})")
        elif self._state == "unusable" and not self._hopeless:
            if clock.boot_time_seconds() >= self._started_at + PAUSE_SECONDS:
                self.start()
        return self._state

    def fork_launcher(self, folder: Path) -> int:
        """Fork the launcher of a worker folder whose launch.json is written; return the launcher's PID.

        Raises OSError without an answer; the folder must then be deleted, so that a late launcher finds
        nothing to start.
        """
        if self._state != "ready" or self._socket is None:
            raise OSError("the nursery is not ready")
        try:
            self._socket.sendall(json.dumps({"folder": str(folder)}).encode() + b"\n")
            answer = self._read(ANSWER_SECONDS)
        except OSError as error:
            self._give_up(f"it does not answer: {error}")
            raise
        if answer is None:
            self._give_up("it does not answer")
            raise OSError("the nursery does not answer")
        return int(answer["launcher"])

    def close(self) -> None:
        """End the nursery. Launchers that it forked, and their workers, continue."""
        self._hopeless = True
        self._end()
        self._state = "unusable"

    def _hear_of_its_start(self) -> None:
        try:
            answer = self._read(0.0)
        except OSError as error:
            self._give_up(f"it ended while it imported: {error}")
            return
        if answer is not None and answer.get("ready"):
            self._state = "ready"
            logger.info("the nursery is ready after %.1f s", clock.boot_time_seconds() - self._started_at)
        elif answer is not None:
            self._hopeless = True
            self._give_up(str(answer.get("problem")))
        elif clock.boot_time_seconds() >= self._started_at + START_SECONDS:
            self._give_up(f"it has not imported everything within {START_SECONDS:.0f} s")

    def _read(self, timeout_seconds: float) -> dict[str, Any] | None:
        """Return the next message; None if none comes in time. Raises OSError if the process is gone."""
        assert self._socket is not None
        ends_at = clock.boot_time_seconds() + timeout_seconds
        while b"\n" not in self._received:
            left = max(0.0, ends_at - clock.boot_time_seconds())
            if not select.select([self._socket], [], [], left)[0]:
                return None
            part = self._socket.recv(4096)
            if not part:
                raise OSError("the connection was closed")
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _give_up(self, reason: str) -> None:
        logger.warning("workers are started without the nursery, which takes seconds longer: %s", reason)
        self._end()
        self._state = "unusable"

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
