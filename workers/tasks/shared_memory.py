"""Keeps what a worker has imported shared with the processes of its pool.

The collector writes into each object that it looks at, and a page that was written is copied for the process
that wrote it. Objects that exist before the pool forks are therefore taken out of its sight.
"""

from __future__ import annotations

import gc
from typing import Any

from celery import bootsteps

from workers.tasks.loaded_kernels import LoadedKernels
from workers.tasks.queue_tasks import QueueTasks


class SharedMemory(bootsteps.Step):
    """The last part of a worker that is made before its pool begins."""

    requires = (QueueTasks, LoadedKernels)

    def create(self, parent: Any) -> None:
        """Freeze all that was imported."""
        gc.collect()
        gc.freeze()
