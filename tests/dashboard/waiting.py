"""Bounded waiting for a condition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from django.db import connection


def wait_until(
    condition: Callable[[], bool], what: str, timeout_seconds: float = 60.0, look_seconds: float = 0.02
) -> None:
    """Poll until `condition` holds, ``look_seconds`` apart. Raises AssertionError naming `what` if it never
    does."""
    pause = threading.Event()
    end = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout_seconds:.0f} s in vain until {what}")
        pause.wait(look_seconds)


def wait_until_requests_have_ended() -> None:
    """Wait after closing pages: a request still in progress would block emptying the tables."""

    def quiet() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "select count(*) from pg_stat_activity where datname = current_database() "
                "and pid <> pg_backend_pid() and state <> 'idle'"
            )
            return bool(cursor.fetchone() == (0,))

    wait_until(quiet, "every request to the site has ended")
