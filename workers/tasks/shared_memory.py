"""Keeps a worker's imported objects shared with the processes of its pool.

The garbage collector writes to each object that it visits, and a written page is copied for the process that
writes it. Objects that exist before the pool forks are therefore frozen.
"""

from __future__ import annotations

import gc
from typing import Any

from celery import bootsteps

from workers.tasks.loaded_kernels import LoadedKernels
from workers.tasks.queue_tasks import QueueTasks


class SharedMemory(bootsteps.Step):
    """The last step of a worker before its pool starts."""

    requires = (QueueTasks, LoadedKernels)

    def create(self, parent: Any) -> None:
        """Freeze all existing objects."""
        gc.collect()
        gc.freeze()
