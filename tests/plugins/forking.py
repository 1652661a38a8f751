"""Starts functions in separate processes without the seconds of importing: they are forked from one that has
imported what agents, stores and ranks need."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext
from pathlib import Path

_RANKS = Path(__file__).parents[1] / "communication" / "hooks"


def forking() -> ForkServerContext:
    """Return the context of such processes. Their functions must be at module level."""
    context = multiprocessing.get_context("forkserver")
    tests = [f"tests.communication.hooks.{path.stem}" for path in _RANKS.glob("test_*.py")]
    context.set_forkserver_preload(
        ["workers.agent.command_line", "recovery.store.process", "torch._dynamo", *tests]
    )
    return context
