"""The life cycle of a serving worker: load the model, serve until the goal is `drain`, then end."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from pathlib import Path

from punctual.function import TrainingFunction
from workers.runtime.connection import AgentConnection
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import select_device
from workers.runtime.goals import Goals
from workers.runtime.server_lease import ServerLease
from workers.serving.assignment import WEIGHTS, ServingAssignment
from workers.serving.experts.joining import ServingGroup
from workers.serving.limits import TOKENS
from workers.serving.predicting import Predict
from workers.serving.ring.layer_ring import LayerRing
from workers.serving.ring.placing import admit
from workers.serving.server import ServingServer, StuckError, listen
from workers.serving.serving_model import load_model

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
_REPORT_SECONDS = 1.0
_LEAVING_SECONDS = 0.05


class ServingGeneration:
    """One replica of a deployment."""

    def __init__(
        self,
        assignment: ServingAssignment,
        function: TrainingFunction,
        connection: AgentConnection,
        goals: Goals,
        box: Path,
        lease: ServerLease,
    ) -> None:
        self._assignment = assignment
        self._function = function
        self._connection = connection
        self._goals = goals
        self._box = box
        self._lease = lease
        self._reported_at = 0.0
        self._group: ServingGroup | None = None
        self._ring: LayerRing | None = None

    def run(self) -> int:
        """Serve to the end; return the exit code.

        Raises:
            WorkerFailureError: the model cannot be served, the port is taken, a call of the function does not
                return, a layer cannot be copied to the device, a server of its group is lost, or the server's
                lease is over.
        """
        assignment = self._assignment
        self._connection.phase("loading")
        device = select_device(assignment.device)
        model = load_model(
            self._function,
            assignment.entry,
            assignment.seed,
            self._box / "in" / WEIGHTS if assignment.has_weights else None,
            device,
            keeps_experts_on_host=assignment.group is not None,
            device_bytes=assignment.device_bytes,
        )
        self._ring = model.ring
        if self._ring is not None:
            admit(self._ring, assignment.latency_target_seconds)
        predict: Predict = model.predict
        if assignment.group is not None:
            self._group = ServingGroup(assignment, assignment.group, model.module, device, self._box)
            predict = self._group.together(predict)
        try:
            listener = listen(assignment.address, assignment.port)
        except OSError as error:
            raise WorkerFailureError(
                "start_failed", f"{assignment.address} port {assignment.port}: {error}"
            ) from error
        server = ServingServer(
            listener,
            predict,
            assignment.limits,
            assignment.generation,
            self._token_digests,
            ends_process=True,
        )
        server.start()
        _log.info("serving on port %d", assignment.port)
        self._connection.phase("serving")
        try:
            self._serve(server)
        finally:
            server.stop()
        self._report(server)
        self._connection.phase("completed")
        return 0

    def _token_digests(self) -> Collection[str]:
        digests = (self._goals.start or {}).get("tokens")
        return [str(digest) for digest in digests[:TOKENS]] if isinstance(digests, list) else ()

    def _serve(self, server: ServingServer) -> None:
        """Serve until the goal is `drain`, and then until clients have found other replicas."""
        while self._goals.goal == "prepare" or self._goals.goal == "serve":
            self._look(server)
            self._goals.wait_for_change(_LOOK_SECONDS)
        limits = self._assignment.limits
        server.is_draining = True
        self._connection.phase("draining")
        ends_at = time.monotonic() + limits.drain_seconds
        while time.monotonic() < ends_at and server.counts.quiet_seconds < limits.drain_quiet_seconds:
            self._look(server)
            time.sleep(min(_LOOK_SECONDS, limits.drain_quiet_seconds))
        if self._group is not None:
            # The others may still have requests, which need this server's experts.
            while time.monotonic() < ends_at and not self._group.may_leave():
                self._look(server)
                time.sleep(_LEAVING_SECONDS)
            self._group.close()

    def _look(self, server: ServingServer) -> None:
        self._lease.require()
        try:
            server.check()
        except StuckError as error:
            raise WorkerFailureError("function_error", str(error), error.where) from error
        if self._group is not None:
            self._group.check()
        if self._ring is not None and self._ring.failure:
            raise WorkerFailureError("start_failed", self._ring.failure)
        if time.monotonic() >= self._reported_at + _REPORT_SECONDS:
            self._report(server)

    def _report(self, server: ServingServer) -> None:
        self._reported_at = time.monotonic()
        counts = server.counts.report(server.waiting)
        experts = None if self._group is None else self._group.report()
        ring = None if self._ring is None else self._ring.report()
        self._connection.serving(**counts, experts=experts, ring=ring)
