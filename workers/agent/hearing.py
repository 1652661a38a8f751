"""Handling of assigned workers' messages and ends: accepted or refused, and reported to the control plane."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from punctual.protocol.limits import clean_text
from workers.agent.machine import clock
from workers.agent.machine.resource_limits import EXCEEDED
from workers.agent.processes.worker_messages import (
    FileWritten,
    Hello,
    Message,
    Metrics,
    PhaseChange,
    Refusal,
    RequestCounts,
    WorkerEvent,
)
from workers.agent.processes.worker_pool import WorkerPool
from workers.agent.processes.worker_record import (
    ENDING_PHASES,
    LEASE_ENDED,
    READY_STEPS,
    STARTING_PHASES,
    STEP_OF_PHASE,
    Assignment,
    WorkerRecord,
)
from workers.agent.processes.worker_sockets import WorkerSockets
from workers.agent.storage.uploads import StoredUpload, Upload, Uploads
from workers.agent.talking.event_outbox import EventOutbox, event_id

logger = logging.getLogger(__name__)

# Limits of one worker; a well-behaved one needs a tenth.
EVENTS_OF_A_WORKER = 200
FILES_OF_A_WORKER = 8
# Refusals reported to the job's users; further ones are logged by the agent, then dropped.
TOLD_REFUSALS = 5
LOGGED_REFUSALS = 50
REASON_CHARACTERS = 500


class Hearing:
    """Handles workers' messages. All methods run in the main thread.

    `greeted`: called when an assigned worker has connected, with whether it is still warm. `on_metrics`:
    receives workers' measurements. `changed`: called when a report is due at once.
    """

    def __init__(
        self,
        pool: WorkerPool,
        sockets: WorkerSockets,
        uploads: Uploads,
        outbox: EventOutbox,
        *,
        greeted: Callable[[WorkerRecord, bool], None],
        on_metrics: Callable[[Assignment, Metrics], None],
        changed: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._sockets = sockets
        self._uploads = uploads
        self._outbox = outbox
        self._greeted = greeted
        self._on_metrics = on_metrics
        self._changed = changed

    def hear(self, key: str, message: Message | None) -> None:
        """Handle a message of a worker; None: its connection is lost."""
        record = self._pool.records.get(key)
        if record is None or not record.alive:
            return
        record.heard_at = clock.boot_time_seconds()
        if message is None:
            record.connected = False
        elif isinstance(message, Refusal):
            self._refuse(record, "message", message.reason)
        elif isinstance(message, Hello):
            self._greet(record, message)
        elif record.assignment is None:
            logger.warning("worker %s speaks without having work", key)
        elif isinstance(message, PhaseChange):
            self._take_phase(record, message)
        elif isinstance(message, Metrics):
            self._on_metrics(record.assignment, message)
        elif isinstance(message, RequestCounts):
            self._take_counts(record, record.assignment, message)
        elif isinstance(message, WorkerEvent):
            self._take_event(record, record.assignment, message)
        elif isinstance(message, FileWritten):
            self._take_file(record, record.assignment, message)

    def _greet(self, record: WorkerRecord, hello: Hello) -> None:
        record.connected = True
        if hello.warm:
            self._pool.warmed_up(record)
        else:
            record.warm = False
            assignment = record.assignment
            if assignment is None or (hello.job, hello.generation, hello.rank) != (
                assignment.job,
                assignment.generation,
                assignment.rank,
            ):
                self._pool.kill(record, f"it says that it serves job {hello.job}, which it does not")
                return
        self._pool.tell_lease(record)
        if record.assignment is not None:
            self._greeted(record, hello.warm)

    def _take_phase(self, record: WorkerRecord, message: PhaseChange) -> None:
        if STEP_OF_PHASE[message.phase] < STEP_OF_PHASE[record.phase]:
            self._refuse(record, "phase", f"{message.phase} after {record.phase}")
            return
        record.iteration = message.iteration
        record.warm = False
        if record.phase != message.phase:
            record.phase = message.phase
            if record.ready_at is None and STEP_OF_PHASE[message.phase] in READY_STEPS:
                record.ready_at = clock.boot_time_seconds()
            record.save_progress()
            self._changed()

    def _take_counts(self, record: WorkerRecord, assignment: Assignment, message: RequestCounts) -> None:
        if assignment.purpose != "serving":
            self._refuse(record, "serving", "it is no replica of a deployment")
            return
        record.counts, record.counts_heard_at = message.counts, record.heard_at

    def _take_event(self, record: WorkerRecord, assignment: Assignment, message: WorkerEvent) -> None:
        if message.local_id not in record.events_heard:
            if len(record.events_heard) >= EVENTS_OF_A_WORKER:
                self._refuse(record, "event", f"a worker has at most {EVENTS_OF_A_WORKER} events")
                return
            record.events_heard.add(message.local_id)
        identifier = event_id(record.key, message.local_id)
        body = dict(message.body)
        exceeded = self._pool.exceeded(record) if body["kind"] == "failed" else None
        if exceeded is not None:
            # To the worker, a loader killed by the kernel looks like an error of the function.
            body["reason"], body["message"] = exceeded
        self._add_event(record, assignment, {"id": identifier, **body})
        self._sockets.send(record.key, {"acknowledged": [message.local_id]})

    def _add_event(self, record: WorkerRecord, assignment: Assignment, event: dict[str, Any]) -> None:
        whose = {"job": assignment.job, "generation": assignment.generation, "rank": assignment.rank}
        self._outbox.add({**event, **whose}, worker_key=record.key)
        self._changed()

    def _take_file(self, record: WorkerRecord, assignment: Assignment, message: FileWritten) -> None:
        now = clock.boot_time_seconds()
        upload = Upload(
            record.key, record.box, assignment.job, assignment.generation, assignment.rank, message, now
        )
        pending = self._uploads.pending(record.key)
        if len(pending) >= FILES_OF_A_WORKER and all(upload.identity != other.identity for other in pending):
            self._refuse(record, "file", f"at most {FILES_OF_A_WORKER} files of a worker wait to be stored")
            return
        self._uploads.add(upload)

    def _refuse(self, record: WorkerRecord, what: str, reason: str) -> None:
        """Log a refused message or file, and report the first few to the job's users."""
        record.refusals += 1
        if record.refusals <= LOGGED_REFUSALS:
            logger.warning("worker %s: %s refused: %s", record.key, what, reason)
        if record.assignment is not None and record.refusals <= TOLD_REFUSALS:
            identifier = event_id(record.key, f"refused/{what}/{reason}")
            self._add_event(
                record,
                record.assignment,
                {
                    "id": identifier,
                    "kind": "refused",
                    "what": what,
                    "reason": clean_text(reason, REASON_CHARACTERS),
                },
            )

    def stored(self, result: StoredUpload) -> None:
        """Report a file that is durable, then acknowledge it to the worker."""
        upload = result.upload
        record = self._pool.records.get(upload.worker_key)
        for reason in result.refused if record is not None else ():
            assert record is not None
            self._refuse(record, "artifact", reason)
        if result.event is not None:
            self._outbox.add(result.event, worker_key=upload.worker_key)
            self._changed()
        self._sockets.send(upload.worker_key, {"stored": upload.written.path})

    def fail(self, record: WorkerRecord, reason: str, message: str) -> None:
        """Report that a worker cannot continue, and end it."""
        if not record.alive or record.phase in ENDING_PHASES:
            return
        record.phase = "failed"
        record.save_progress()
        self.report_failure(record, reason, message)
        self._pool.kill(record, message)

    def ended(self, record: WorkerRecord) -> None:
        """Handle the end of a worker's process: it is a failure unless it was expected or already
        explained."""
        self._changed()
        assignment, status = record.assignment, record.exit
        if assignment is None or status is None:
            return
        completing = any(upload.written.kind == "final" for upload in self._uploads.pending(record.key))
        expected = record.phase in ENDING_PHASES or record.goal == "stop" or completing
        if record.timed_out and not expected:
            seconds = measuring_seconds(assignment)
            self.report_failure(
                record, "measuring_timeout", f"measuring took longer than {seconds:.0f} s and was ended"
            )
            return
        if expected or record.kill_reason not in (None, LEASE_ENDED):
            return
        if status.reason in EXCEEDED:
            self.report_failure(record, status.reason, status.message)
            return
        reason = "start_failed" if record.phase in STARTING_PHASES else "killed"
        if status.reason == "lease_ended":
            reason = "lease_ended"
        self.report_failure(record, reason, _describe_end(record))

    def report_failure(self, record: WorkerRecord, reason: str, message: str) -> None:
        """Report why a worker failed."""
        assert record.assignment is not None
        logger.warning("worker %s failed (%s): %s", record.key, reason, message)
        self._add_event(
            record,
            record.assignment,
            {
                "id": event_id(record.key, "failure"),
                "kind": "failed",
                "reason": reason,
                "message": clean_text(message),
                "traceback": "",
                "iteration": record.iteration,
            },
        )


def measuring_seconds(assignment: Assignment) -> float:
    """Return the time limit of a measurement, including fetching, importing and training."""
    profile = assignment.specification.get("profile") or {}
    return max(0.0, float(profile.get("max_seconds", 0.0)))


def _describe_end(record: WorkerRecord) -> str:
    status = record.exit
    assert status is not None
    if status.reason == "lease_ended":
        return "its lease ended: the agent did not reach the control plane in time"
    if status.message:
        return status.message
    if status.signal is not None:
        hint = " (out of memory?)" if status.signal == 9 else ""
        return f"the worker was ended by signal {status.signal}{hint}"
    return f"the worker ended with code {status.code} without saying why"
