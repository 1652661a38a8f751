"""Loads the decision core's machine code into the planner's worker before its first pass.

Compiled kernels lie on disk. Each is loaded, with all that it calls, at its first call. Together that takes
two seconds of one processor, and the first passes over a burst would take as much longer. So the worker that
consumes the planner's queue runs through a small cluster's life while it is made, before it forks the process
that plans: that one and every successor of it have the kernels from the beginning.
"""

from __future__ import annotations

import time
from typing import Any

import structlog
from celery import bootsteps

log = structlog.get_logger(__name__)

QUEUE = "planner"


class LoadedKernels(bootsteps.Step):
    """The part of the planner's worker that is made before its pool begins."""

    def include_if(self, parent: Any) -> bool:
        """Other workers decide nothing."""
        return QUEUE in parent.app.amqp.queues.consume_from

    def create(self, parent: Any) -> None:
        """Load them."""
        load_kernels()


def load_kernels() -> None:
    """Load all kernels that decisions use. Nothing is done where they would have to be compiled first: that
    takes a minute, and nobody plans meanwhile."""
    # Here: every process of the platform imports the application, and only the planner's worker needs these.
    from launch.compile_core import compile_core
    from scheduling.core.kernels import machine_code_is_complete

    if not machine_code_is_complete():
        return

    began = time.perf_counter()
    compile_core()
    log.info("kernels_loaded", seconds=round(time.perf_counter() - began, 2))
