"""What tasks of several queues share."""

from __future__ import annotations

import os
from typing import Any

from django.db import OperationalError

#: A database that is away or full comes back; the task is tried again, and the next tick would do the same.
RETRY: dict[str, Any] = {"autoretry_for": (OperationalError,), "retry_backoff": 1, "max_retries": 3}
#: Of work that nobody waits for as they wait for a verdict.
NICENESS = 10


def be_nice() -> None:
    """Let the process give way to all others that compute."""
    if os.getpriority(os.PRIO_PROCESS, 0) < NICENESS:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
