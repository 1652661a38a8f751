"""A process of a worker keeps its connection to the database from one task to the next, as a thread of the
web server does.

Celery by itself ends the connection before and after each task. Even where nothing happens there are four
tasks a second, and for each of them PostgreSQL started a process that read its catalogues anew.
`CELERY_DB_REUSE_MAX` keeps Celery from that. What Django does around a request is done around a task instead:
a connection that broke, or that is older than `DATABASE_CONN_MAX_AGE`, is given up.
"""

from __future__ import annotations

from typing import Any

from celery import signals
from django.db import close_old_connections


def keep_connections() -> None:
    """From now on connections are given up between tasks only where Django would between requests."""
    signals.task_prerun.connect(_look)
    signals.task_postrun.connect(_look)


def _look(sender: Any, **_: Any) -> None:
    # A task that somebody calls like a function shares the caller's connection.
    if not sender.request.is_eager:
        close_old_connections()
