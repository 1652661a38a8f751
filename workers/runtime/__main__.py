"""One worker process: ``python -P -m workers.runtime --box DIR``.

It gets warm (imports PyTorch and runs a toy iteration) before it says hello, waits for its assignment, serves
it and ends. SIGTERM and the goal `stop` end it at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers.runtime.warm_up import warm_up

if TYPE_CHECKING:
    from workers.runtime.failures import WorkerFailureError
    from workers.runtime.training import TrainingGeneration

_log = logging.getLogger(__name__)

FAILED = 1
_ACKNOWLEDGEMENT_SECONDS = 1.0
_LONGEST_GOODBYE_SECONDS = 600.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a worker to its end; does not return."""
    parser = argparse.ArgumentParser(prog="workers.runtime", description=__doc__)
    parser.add_argument("--box", type=Path, required=True, help="the worker's folder")
    box = parser.parse_args(arguments).box.resolve()
    _exit_at_once_on_sigterm()
    logging.basicConfig(level=logging.INFO, format="[runtime] %(message)s", stream=sys.stderr)
    # The function's output is read live from the log.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    warm_up()
    code = Worker(box).run()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: libraries of the function, or a collective without its peers, may block it.
    os._exit(code)


def _exit_at_once_on_sigterm() -> None:
    """Wait for SIGTERM in a thread: the main thread may be inside a collective, where no handler runs."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        signal.sigwait({signal.SIGTERM})
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, name="sigterm", daemon=True).start()


class Worker:
    """A worker: it waits for one assignment and runs it."""

    def __init__(self, box: Path) -> None:
        # Imported here so that `warm_up` comes first.
        from workers.runtime.connection import AgentConnection
        from workers.runtime.goals import Goals
        from workers.runtime.server_lease import ServerLease

        self.box = box
        self.goals = Goals()
        self.lease = ServerLease()
        self.connection = AgentConnection(box, self._hear)
        self._assigned = threading.Event()
        self._message: Mapping[str, Any] = {}
        self._generation: TrainingGeneration | None = None

    def run(self) -> int:
        """Wait for an assignment and run it; return the exit code."""
        from workers.runtime.failures import WorkerFailureError, is_peer_loss, peer_lost

        (self.box / "out").mkdir(exist_ok=True)
        self.connection.start()
        self._assigned.wait()
        try:
            try:
                code = self._serve()
            except RuntimeError as error:
                if not is_peer_loss(error):
                    raise
                raise peer_lost(error) from error
        except WorkerFailureError as failure:
            return self._fail(failure)
        except Exception as error:  # noqa: BLE001
            # A fault of the runtime itself: the platform may retry elsewhere, and the log has the details.
            _log.exception("the runtime failed")
            return self._fail(
                WorkerFailureError("killed", f"the runtime failed: {type(error).__name__}: {error}")
            )
        self.connection.drain(_ACKNOWLEDGEMENT_SECONDS, _LONGEST_GOODBYE_SECONDS)
        return code

    def _serve(self) -> int:
        from punctual.function import set_folders
        from punctual.protocol.hyperparameters import HyperparameterError
        from workers.runtime.assignment import Assignment
        from workers.runtime.failures import WorkerFailureError
        from workers.runtime.function.function_loading import load_function
        from workers.runtime.profiling import ProfilingGeneration
        from workers.runtime.training import TrainingGeneration, WorkerContext

        if self._message.get("purpose") == "serving":
            from workers.serving.start import serve

            return serve(self._message, self.connection, self.goals, self.box, self.lease)
        try:
            assignment = Assignment.from_message(self._message)
        except HyperparameterError as error:
            raise WorkerFailureError("function_load_error", str(error)) from error
        except ValueError as error:
            raise WorkerFailureError("start_failed", str(error)) from error
        self.connection.assigned(assignment.job, assignment.generation, assignment.rank)
        logging.getLogger().handlers[0].setFormatter(
            logging.Formatter(f"[runtime {assignment.generation}.{assignment.rank}] %(message)s")
        )
        self.connection.phase("preparing")
        function = load_function(self.box, assignment.entry, assignment.hyperparameters, assignment.seed)
        context = WorkerContext(assignment, function, self.connection, self.goals, self.box, self.lease)
        set_folders(self.box / "data", context.artifacts)
        if assignment.purpose == "profiling":
            return ProfilingGeneration(context).run()
        generation = TrainingGeneration(context)
        self._generation = generation
        return generation.run()

    def _fail(self, failure: WorkerFailureError) -> int:
        _log.error("%s: %s", failure.reason, failure.message)
        if failure.traceback_text:
            sys.stderr.write(failure.traceback_text)
        iteration = None if self._generation is None else self._generation.progress.iteration
        self.connection.event(
            "failed",
            reason=failure.reason,
            message=failure.message,
            traceback=failure.traceback_text,
            iteration=iteration,
        )
        self.connection.phase("failed", iteration)
        self.connection.drain(_ACKNOWLEDGEMENT_SECONDS, _LONGEST_GOODBYE_SECONDS)
        return FAILED

    def _hear(self, message: Mapping[str, Any]) -> None:
        """Handle a message of the agent (in the connection's thread)."""
        if "assign" in message:
            # A worker is used once; a repeated assignment is the same.
            if not self._assigned.is_set():
                self._message = message["assign"]
                self._take_goal(self._message.get("goal"), self._message.get("start"))
                self._assigned.set()
        elif "goal" in message:
            self._take_goal(message["goal"], message.get("start"))
        elif "lease" in message:
            self.lease.update(message["lease"])

    def _take_goal(self, goal: str | None, start: Mapping[str, Any] | None) -> None:
        if goal is None:
            return
        self.goals.update(goal, start)
        if self.goals.goal == "stop":
            # Exit from this thread: the main thread may be waiting for a rank that is gone.
            os._exit(0)


if __name__ == "__main__":
    main()
