"""Starts a replica from the agent's `assign` message."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from punctual.function import set_folders
from workers.runtime.connection import AgentConnection
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.function_loading import load_function
from workers.runtime.goals import Goals
from workers.runtime.server_lease import ServerLease
from workers.serving.assignment import ServingAssignment
from workers.serving.generation import ServingGeneration


def serve(
    message: Mapping[str, Any], connection: AgentConnection, goals: Goals, box: Path, lease: ServerLease
) -> int:
    """Serve by the message to the end; return the exit code. Raise WorkerFailureError on failure."""
    try:
        assignment = ServingAssignment.from_message(message)
    except ValueError as error:
        raise WorkerFailureError("start_failed", str(error)) from error
    connection.assigned(assignment.job, assignment.generation, assignment.rank)
    logging.getLogger().handlers[0].setFormatter(
        logging.Formatter(f"[replica {assignment.generation}] %(message)s")
    )
    connection.phase("preparing")
    function = load_function(box, assignment.entry, assignment.hyperparameters, assignment.seed)
    set_folders(box / "data", box / "artifacts")
    return ServingGeneration(assignment, function, connection, goals, box, lease).run()
