"""Imports only the tasks of the queues that a worker consumes.

The tasks of a queue are in this package's module of the queue's name. A worker thus loads only what its own
tasks need. Messages name tasks, so senders import none.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from celery import bootsteps


class QueueTasks(bootsteps.Step):
    """The step of a worker that imports its tasks before the pool starts."""

    def create(self, parent: Any) -> None:
        """Import the tasks."""
        import_tasks(parent.app.amqp.queues.consume_from)


def import_tasks(queues: Iterable[str]) -> None:
    """Import the tasks of these queues.

    Raises:
        ModuleNotFoundError: no tasks belong to a queue of that name.
    """
    for queue in queues:
        import_module(f"workers.tasks.{queue}")
