"""Waiting for something to become true, with an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], what: str, timeout_seconds: float = 20.0) -> None:
    """Asks until `condition` holds. Raises AssertionError naming `what` when it never does."""
    pause = threading.Event()
    end = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout_seconds:.0f} s in vain until {what}")
        pause.wait(0.02)
