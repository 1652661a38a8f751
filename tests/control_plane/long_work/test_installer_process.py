"""An installer's process group ends at the caller's request, and with the caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from scheduling.services.long_work.installer_process import read_tail, run_installer
from tests.dashboard.waiting import wait_until

#: Starts a child of its own, and writes both process ids before it waits for ever.
_WITH_CHILD = 'sleep 100000 & echo "$$ $!" > made; mv made pids; echo working; wait'


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_whole_group_ends_when_the_caller_stops_it(tmp_path: Path) -> None:
    def stop_once_started(output: str) -> None:
        if "working" in output:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_installer(
            ["/bin/sh", "-c", _WITH_CHILD],
            folder=tmp_path,
            environment={"PATH": os.environ["PATH"]},
            log=tmp_path / "log",
            report=stop_once_started,
        )
    for pid in (tmp_path / "pids").read_text().split():
        wait_until(partial(is_gone, int(pid)), f"process {pid} has ended")


def test_an_installer_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from scheduling.services.long_work.installer_process import *; "
        "folder = Path(sys.argv[1]); run_installer(['/bin/sh', '-c', sys.argv[2]], folder=folder, "
        "environment={}, log=folder / 'log', report=print)"
    )
    os.mkfifo(tmp_path / "pipe")
    worker = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), "echo $$ > made; mv made pids; read x < pipe"]
    )
    wait_until((tmp_path / "pids").exists, "the installer runs")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    installer = int((tmp_path / "pids").read_text())
    wait_until(partial(is_gone, installer), "the installer has ended")


def test_the_output_ends_with_its_last_characters_without_the_path(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 100_000 + f"\0{tmp_path}/environment".encode() + b"\xff")
    assert read_tail(log, tmp_path, 20) == "x" * 7 + "/environment\ufffd"
