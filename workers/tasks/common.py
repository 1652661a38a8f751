"""Options and helpers that tasks of several queues share."""

from __future__ import annotations

import os
from typing import Any

from django.db import OperationalError

#: A database that is unreachable or full recovers: the task is retried, and so would be the next tick's.
RETRY: dict[str, Any] = {"autoretry_for": (OperationalError,), "retry_backoff": 1, "max_retries": 3}
#: Niceness of work that is less urgent than verdicts.
NICENESS = 10


def be_nice() -> None:
    """Lower the process's priority."""
    if os.getpriority(os.PRIO_PROCESS, 0) < NICENESS:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
