"""The agent's reports: their contents, and the effects of their answers."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from emulated_links.load import LinkLoad
from workers.agent.machine import clock
from workers.agent.orders.agent_state import AgentState
from workers.agent.processes.worker_messages import Metrics
from workers.agent.processes.worker_record import Assignment, WorkerRecord
from workers.agent.talking import worker_logs
from workers.agent.talking.event_outbox import EventOutbox
from workers.agent.talking.metric_buffer import Measured, MetricBuffer
from workers.agent.talking.worker_logs import LogPiece

logger = logging.getLogger(__name__)

EVENTS_PER_REPORT = 200
EVENT_BYTES_PER_REPORT = 1 << 20
METRICS_PER_REPORT = 500
METRIC_BYTES_PER_REPORT = 1 << 19
#: Larger than any report: no limit.
ALL_ITEMS = 1 << 20
TOLD_REFUSALS = 20


@dataclass(frozen=True)
class Report:
    """One report, and the buffered entries that it contains."""

    #: The report as JSON values.
    body: dict[str, Any]
    metrics: tuple[Measured, ...]
    logs: tuple[LogPiece, ...]
    sent_boot_seconds: float

    @property
    def items(self) -> int:
        """Number of items besides the list of workers."""
        return len(self.body["events"]) + len(self.metrics) + len(self.logs)


class Reporter:
    """Builds reports and handles their answers."""

    def __init__(
        self,
        state: AgentState,
        outbox: EventOutbox,
        inventory: dict[str, Any],
        link_load: LinkLoad | None = None,
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._inventory = inventory
        self._link_load = link_load
        self._inventory_known = False
        self._boot_id = uuid.uuid4().hex
        self._metrics = MetricBuffer()
        self._items_at_most = ALL_ITEMS

    def add_metrics(self, assignment: Assignment, metrics: Metrics) -> None:
        """Add a worker's measurements to the next report."""
        self._metrics.add(assignment, metrics)

    def build(
        self,
        records: Iterable[WorkerRecord],
        lost: Iterable[dict[str, Any]],
        desired_version: int,
        memory_store: dict[str, Any] | None = None,
        link_probe: dict[str, Any] | None = None,
    ) -> Report:
        """Return a report of all workers; `lost`: workers that should be here and have left nothing.

        `desired_version`: of the desired state obeyed last; no worker of an earlier one will be started.
        `memory_store`: report of the server's in-memory store, if any. `link_probe`: result of a link
        measurement, if any.
        """
        records = list(records)
        now = clock.boot_time_seconds()
        left = self._items_at_most
        events = self._outbox.pending(min(left, EVENTS_PER_REPORT), EVENT_BYTES_PER_REPORT)
        left -= len(events)
        metrics = self._metrics.next(min(left, METRICS_PER_REPORT), METRIC_BYTES_PER_REPORT)
        left -= len(metrics)
        logs = worker_logs.next_pieces(records)[:left]
        body = {
            "sequence": self._state.next_sequence(),
            "boot_id": self._boot_id,
            "epoch_seen": self._state.memory.epoch,
            "desired_version": desired_version,
            "inventory": None if self._inventory_known else self._inventory,
            "workers": [*(listing for record in records if (listing := record.listing())), *lost],
            "events": events,
            "metrics": [
                {**measured.entry, "age_seconds": max(0.0, now - measured.at_boot_seconds)}
                for measured in metrics
            ],
            "logs": [piece.to_json() for piece in logs],
            "memory_store": memory_store,
            "link_load": None if self._link_load is None else self._link_load.now(),
            "link_probe": link_probe,
            "serving": [entry for record in records if (entry := record.counts_entry()) is not None],
        }
        return Report(body, tuple(metrics), tuple(logs), clock.boot_time_seconds())

    def answered(self, report: Report, answer: dict[str, Any]) -> None:
        """Settle a report that the control plane has received, except the parts that it deferred."""
        deferred = answer.get("deferred") or []
        if "inventory" not in deferred:
            self._inventory_known = True
        self._items_at_most = min(ALL_ITEMS, 2 * self._items_at_most)
        if "metrics" not in deferred:
            self._metrics.forget(list(report.metrics))
        if "logs" not in deferred:
            worker_logs.delivered(report.logs)
        refused = [item for item in answer.get("refused") or [] if isinstance(item, dict)]
        for item in refused[:TOLD_REFUSALS]:
            logger.error("the control plane refuses a part of a report: %s", item)
        for item in refused:
            if item.get("part") == "events" and isinstance(item.get("index"), int):
                self._set_aside(report, item["index"])
        acknowledged = answer.get("acknowledged")
        if isinstance(acknowledged, list):
            self._outbox.acknowledge(
                [identifier for identifier in acknowledged if isinstance(identifier, str)]
            )

    def refused(self, report: Report, reason: str) -> None:
        """Handle a report that the control plane cannot read: halve the next ones, down to the unreadable
        item.

        That item is set aside, so that it does not delay others.
        """
        logger.error("a report was refused: %s", reason)
        if report.items > 1:
            self._items_at_most = max(1, report.items // 2)
            return
        if report.body["events"]:
            logger.error("an event is set aside: %s", report.body["events"][0])
            self._set_aside(report, 0)
        self._metrics.forget(list(report.metrics))
        worker_logs.delivered(report.logs)

    def _set_aside(self, report: Report, index: int) -> None:
        events = report.body["events"]
        if 0 <= index < len(events):
            self._outbox.refuse(events[index]["id"])

    def forget_everything_measured(self) -> None:
        """Drop all measurements after a fence."""
        self._metrics.clear()
