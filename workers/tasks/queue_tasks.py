"""Imports into a worker the tasks of the queues that it consumes, and no others.

The tasks of a queue are in the module of this package that has the queue's name. So a worker loads only what
its own tasks compute with; messages name tasks, and their senders import none.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from celery import bootsteps


class QueueTasks(bootsteps.Step):
    """The part of a worker that imports its tasks before the pool begins."""

    def create(self, parent: Any) -> None:
        """Import them."""
        import_tasks(parent.app.amqp.queues.consume_from)


def import_tasks(queues: Iterable[str]) -> None:
    """Import the tasks of these queues.

    Raises:
        ModuleNotFoundError: no tasks belong to a queue of that name.
    """
    for queue in queues:
        import_module(f"workers.tasks.{queue}")
