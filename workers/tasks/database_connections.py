"""Keeps a worker process's database connection between tasks, as threads of the web server do.

By default Celery closes the connection before and after each task. An idle platform runs four tasks a second,
and for each PostgreSQL would start a process that reads its catalogues. `CELERY_DB_REUSE_MAX` prevents that.
Instead, connections are handled around a task as Django does around a request: one that is broken, or older
than `DATABASE_CONN_MAX_AGE`, is closed.
"""

from __future__ import annotations

from typing import Any

from celery import signals
from django.db import close_old_connections


def keep_connections() -> None:
    """Close connections between tasks only if Django would do so between requests."""
    signals.task_prerun.connect(_look)
    signals.task_postrun.connect(_look)


def _look(sender: Any, **_: Any) -> None:
    # An eager task, called like a function, shares the caller's connection.
    if not sender.request.is_eager:
        close_old_connections()
