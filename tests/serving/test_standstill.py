"""A call of the function that blocks every thread of its process ends the process."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.plugins.forking import forking
from workers.serving import server
from workers.serving.limits import ServingLimits


def hold_the_lock(_inputs: list[Any]) -> list[Any]:
    """Python's regular expressions never release the interpreter's lock."""
    re.match(r"(a+)+$", "a" * 60 + "b")
    return []


def serve(listener: socket.socket, log: Path) -> None:
    """Serve in a separate process."""
    sys.stderr = log.open("w")
    server._STANDSTILL_SECONDS = 0.5
    digests = [hashlib.sha256(b"t").hexdigest()]
    made = server.ServingServer(
        listener, hold_the_lock, ServingLimits(predict_seconds=0.5), 1, lambda: digests, ends_process=True
    )
    made.start()
    made._thread.join()
    os._exit(0)


def test_call_that_holds_the_interpreters_lock_ends_the_process(tmp_path: Path) -> None:
    listener = server.listen("127.0.0.1", 0)
    process = forking().Process(target=serve, args=(listener, tmp_path / "log"))
    process.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/predict"
    listener.close()
    with pytest.raises(httpx.TransportError):
        httpx.post(url, json={"inputs": [1]}, headers={"Authorization": "Bearer t"}, timeout=60)
    process.join(60)
    assert process.exitcode == 1
    assert "in hold_the_lock" in (tmp_path / "log").read_text()
