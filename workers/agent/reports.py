"""The agent's reports: what goes into one, and what an answer to it settles."""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from workers.agent import clock, worker_logs
from workers.agent.agent_state import AgentState
from workers.agent.event_outbox import EventOutbox
from workers.agent.worker_logs import LogPiece
from workers.agent.worker_messages import Metrics
from workers.agent.worker_record import Assignment, WorkerRecord

logger = logging.getLogger(__name__)

EVENTS_PER_REPORT = 200
METRICS_PER_REPORT = 500
METRICS_KEPT = 5_000


@dataclass(frozen=True)
class Report:
    """One report, and what of the agent's buffers it carries."""

    body: dict[str, Any]
    metrics: int
    logs: tuple[LogPiece, ...]
    sent_boot_seconds: float


class Reporter:
    """Builds reports and takes their answers."""

    def __init__(self, state: AgentState, outbox: EventOutbox, inventory: dict[str, Any]) -> None:
        self._state = state
        self._outbox = outbox
        self._inventory = inventory
        self._inventory_known = False
        self._boot_id = uuid.uuid4().hex
        self._metrics: deque[tuple[float, dict[str, Any]]] = deque(maxlen=METRICS_KEPT)
        self._careful = False

    def add_metrics(self, assignment: Assignment, metrics: Metrics) -> None:
        """Keep what a worker measured for the next report; the oldest are dropped when too many wait."""
        entry: dict[str, Any] = {
            "job": assignment.job,
            "generation": assignment.generation,
            "iteration": metrics.iteration,
            "values": dict(metrics.values),
        }
        if metrics.iterations_per_second is not None:
            entry["iterations_per_second"] = metrics.iterations_per_second
        if metrics.train_seconds is not None:
            entry["train_seconds"] = metrics.train_seconds
        self._metrics.append((clock.boot_time_seconds(), entry))

    def build(
        self, records: Iterable[WorkerRecord], lost: Iterable[dict[str, Any]], desired_version: int
    ) -> Report:
        """A report of all workers; `lost` lists workers that should be here and of which nothing is left.

        `desired_version`: of the desired state obeyed last. No worker of an earlier one will be started any more.
        """
        records = list(records)
        now = clock.boot_time_seconds()
        logs = () if self._careful else tuple(worker_logs.next_pieces(records))
        count = 0 if self._careful else min(len(self._metrics), METRICS_PER_REPORT)
        body = {
            "sequence": self._state.next_sequence(),
            "boot_id": self._boot_id,
            "epoch_seen": self._state.memory.epoch,
            "desired_version": desired_version,
            "inventory": None if self._inventory_known else self._inventory,
            "workers": [*(listing for record in records if (listing := record.listing())), *lost],
            "events": self._outbox.pending(1 if self._careful else EVENTS_PER_REPORT),
            "metrics": [{**entry, "age_seconds": now - at} for at, entry in list(self._metrics)[:count]],
            "logs": [piece.to_json() for piece in logs],
        }
        return Report(body, count, logs, clock.boot_time_seconds())

    def answered(self, report: Report, answer: dict[str, Any]) -> None:
        """The control plane has taken the report."""
        self._inventory_known = True
        self._careful = False
        self._forget_metrics(report)
        worker_logs.delivered(report.logs)
        acknowledged = answer.get("acknowledged")
        if isinstance(acknowledged, list):
            self._outbox.acknowledge(
                [identifier for identifier in acknowledged if isinstance(identifier, str)]
            )

    def refused(self, report: Report, reason: str) -> None:
        """The control plane will never take this report: give up part of it, so that the lease can be renewed.

        First metrics, logs and all events but one are left out; if it is refused even so, that event is set aside.
        """
        logger.error("a report was refused: %s", reason)
        events = report.body["events"]
        if self._careful and len(events) == 1:
            logger.error("an event is set aside, as the control plane refuses it: %s", events[0])
            self._outbox.refuse(events[0]["id"])
        self._forget_metrics(report)
        worker_logs.delivered(report.logs)
        self._careful = True

    def forget_everything_measured(self) -> None:
        """After a fence: what was measured here belongs to nobody."""
        self._metrics.clear()

    def _forget_metrics(self, report: Report) -> None:
        for _ in range(min(report.metrics, len(self._metrics))):
            self._metrics.popleft()
