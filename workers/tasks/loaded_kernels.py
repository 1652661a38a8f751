"""Loads the decision core's machine code into the planner's worker before its first pass.

Compiled kernels are on disk. Each is loaded, with its callees, at its first call. All together take two
seconds of one processor, by which the first passes would be delayed. So the worker that consumes the
planner's queue runs a small synthetic cluster through its life cycle before it forks the planning process:
that process and its successors have the kernels from the start.
"""

from __future__ import annotations

import time
from typing import Any

import structlog
from celery import bootsteps

log = structlog.get_logger(__name__)

QUEUE = "planner"


class LoadedKernels(bootsteps.Step):
    """The step of the planner's worker that loads kernels before its pool starts."""

    def include_if(self, parent: Any) -> bool:
        """Return whether this worker consumes the planner's queue."""
        return QUEUE in parent.app.amqp.queues.consume_from

    def create(self, parent: Any) -> None:
        """Load the kernels."""
        load_kernels()


def load_kernels() -> None:
    """Load all kernels that decisions use. Do nothing if they are not compiled: that takes a minute, during
    which nothing is planned."""
    # Imported here: every process imports the application, but only the planner's worker needs these.
    from kernels.compiling import machine_code_is_complete
    from launch.compile_core import compile_core

    if not machine_code_is_complete():
        return

    began = time.perf_counter()
    compile_core()
    log.info("kernels_loaded", seconds=round(time.perf_counter() - began, 2))
