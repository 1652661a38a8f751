"""Waiting for a condition with a timeout."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], bool], *, timeout_seconds: float, interval_seconds: float = 0.05
) -> bool:
    """Poll `condition` until it holds. Returns False if `timeout_seconds` pass without it."""
    end = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(interval_seconds)
    return True
