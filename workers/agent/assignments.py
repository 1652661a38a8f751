"""Giving workers their work: what the agent tells them, and what it makes of what they say."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from punctual.protocol.limits import clean_text
from workers.agent import clock
from workers.agent.configuration import Configuration
from workers.agent.desired_state import GenerationDesire, Goal, WorkerSlot, goal_rank
from workers.agent.durable_files import is_full
from workers.agent.event_outbox import EventOutbox, event_id
from workers.agent.inventory import Accelerator
from workers.agent.main_loop import MainLoop
from workers.agent.provisioning import NotYet, Provisioner, ProvisioningError
from workers.agent.resource_limits import EXCEEDED
from workers.agent.uploads import StoredUpload, Upload, Uploads
from workers.agent.worker_messages import (
    FileWritten,
    Hello,
    Message,
    Metrics,
    PhaseChange,
    Refusal,
    WorkerEvent,
)
from workers.agent.worker_pool import STOP_GRACE_SECONDS, WorkerPool
from workers.agent.worker_record import (
    ENDING_PHASES,
    LEASE_ENDED,
    READY_STEPS,
    STARTING_PHASES,
    STEP_OF_PHASE,
    Assignment,
    WorkerRecord,
)
from workers.agent.worker_sockets import WorkerSockets

logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 10.0
PROVISIONING_THREADS = 4
# What one worker may say: a well-behaved one needs a tenth of it.
EVENTS_OF_A_WORKER = 200
FILES_OF_A_WORKER = 8
# Refusals that its job's people are told of; the next ones are in the agent's log, and then nowhere.
TOLD_REFUSALS = 5
LOGGED_REFUSALS = 50
REASON_CHARACTERS = 500


class Assignments:
    """The conversation with every worker that has, or gets, an assignment. All methods are for the main
    thread.

    `keeps_state`: this server has an in-memory store. `on_metrics` takes what workers measured; `changed` is
    called when something should be reported at once.
    """

    def __init__(
        self,
        configuration: Configuration,
        pool: WorkerPool,
        sockets: WorkerSockets,
        provisioner: Provisioner,
        uploads: Uploads,
        outbox: EventOutbox,
        loop: MainLoop,
        *,
        sandbox_shows_paths: bool,
        keeps_state: bool,
        on_metrics: Callable[[Assignment, Metrics], None],
        changed: Callable[[], None],
    ) -> None:
        self._configuration = configuration
        self._pool = pool
        self._sockets = sockets
        self._provisioner = provisioner
        self._uploads = uploads
        self._outbox = outbox
        self._loop = loop
        self._sandbox_shows_paths = sandbox_shows_paths
        self._keeps_state = keeps_state
        self._on_metrics = on_metrics
        self._changed = changed
        self._threads = ThreadPoolExecutor(PROVISIONING_THREADS, thread_name_prefix="provision")

    def close(self) -> None:
        """Begin nothing new in the background."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # What the agent wants of workers

    def start(self, desire: GenerationDesire, slot: WorkerSlot, lease_deadline: float) -> None:
        """Give a slot's work to a warm worker, or start a cold one; whatever goes wrong is reported as its
        failure."""
        assignment = Assignment.of(desire, slot)
        try:
            record = self._find_worker(assignment, lease_deadline)
        except ProvisioningError as error:
            record = self._pool.unlaunched(error.reason, str(error))
        except OSError as error:
            record = self._pool.unlaunched("start_failed", f"the worker cannot be started: {error}")
        record.assignment = assignment
        if desire.purpose == "profiling":
            self._pool.limit(record, _measuring_seconds(assignment))
        record.goal, record.start = desire.goal, desire.start
        record.save_assignment()
        if not record.alive:
            assert record.exit is not None
            self._report_failure(record, record.exit.reason, record.exit.message)
            return
        logger.info(
            "worker %s is rank %d of job %s generation %d",
            record.key,
            slot.rank,
            desire.job,
            desire.generation,
        )
        self.resume(record)
        self._changed()

    def _find_worker(self, assignment: Assignment, lease_deadline: float) -> WorkerRecord:
        accelerator = self._pool.accelerator(assignment.gpu_index)
        if accelerator is None:
            raise ProvisioningError("start_failed", f"this server has no GPU {assignment.gpu_index}")
        paths = self._provisioner.data_paths(assignment.specification)
        if not (paths and self._sandbox_shows_paths):
            warm = self._pool.take_warm(accelerator)
            if warm is not None:
                return warm
        # What a sandbox shows is fixed when it is made, so declared paths need a new one.
        return self._pool.launch(accelerator, lease_deadline, data_paths=paths)

    def resume(self, record: WorkerRecord) -> None:
        """Go on with an assigned worker wherever it stands: at its beginning, or after a restart of the
        agent."""
        assignment = record.assignment
        assert assignment is not None
        if record.alive:
            if record.provisioned:
                self._prepare_start(record)
            else:
                self._in_background(
                    record,
                    lambda: self._provisioner.fill(
                        record.box, assignment.specification, show_paths=not self._sandbox_shows_paths
                    ),
                    lambda _: self._provisioned(record),
                )
        self._uploads.resume(record.key, record.box, assignment.job, assignment.generation, assignment.rank)

    def set_goal(self, record: WorkerRecord, goal: Goal, start: Mapping[str, Any] | None) -> None:
        """Tell a worker what to do next; a lower goal than before is ignored."""
        if goal_rank(goal) < goal_rank(record.goal):
            return
        record.goal = goal
        if start is not None:
            record.start = start
        record.save_assignment()
        if goal == "stop" and record.stop_deadline is None:
            record.stop_deadline = clock.boot_time_seconds() + STOP_GRACE_SECONDS
            if not record.connected or record.warm:
                self._pool.kill(record, "stopped before it began")
        self._prepare_start(record)

    # Bringing it what it needs

    def _provisioned(self, record: WorkerRecord) -> None:
        record.provisioned = True
        record.save_assignment()
        self._assign(record)
        self._prepare_start(record)

    def _assign(self, record: WorkerRecord) -> None:
        if not (record.provisioned and record.connected and record.warm):
            return
        assignment = record.assignment
        assert assignment is not None
        accelerator = self._pool.accelerator(assignment.gpu_index)
        message = {
            **assignment.specification,
            # Told apart from the assignment, when the state that it names is in the box.
            "goal": "prepare",
            "start": None,
            "rank": assignment.rank,
            "gpu_index": assignment.gpu_index,
            "handover_port": assignment.handover_port,
            "device": self._device(accelerator),
            "interface_address": self._configuration.interface or self._configuration.address,
            "memory_points": {"share": self._configuration.memory_point_share} if self._keeps_state else None,
        }
        self._sockets.send(record.key, {"assign": message})
        self._send_goal(record)

    def _device(self, accelerator: Accelerator | None) -> dict[str, Any]:
        emulation = self._configuration.emulate
        if accelerator is not None and accelerator.cuda:
            return {"kind": "cuda", "index": 0}  # the only one that it sees
        if emulation is not None:
            return {
                "kind": "emulated",
                "name": emulation.kind,
                "model": dict(emulation.model),
                "links": emulation.links.to_message(),
                "place": _number(self._configuration.name) + _number(self._configuration.rack),
            }
        return {"kind": "cpu"}

    def _prepare_start(self, record: WorkerRecord) -> None:
        """Fetch the shards that this rank reads of the state that a goal starts from, then tell the goal."""
        start, assignment = record.start, record.assignment
        assert assignment is not None
        if start is None or start.get("from") != "checkpoint":
            record.local_start = start
        elif not _same_point(record.local_start, start):
            if record.fetching_start != start and record.goal in ("prepare", "train"):
                record.fetching_start = start
                self._in_background(
                    record,
                    lambda: self._provisioner.fetch_shards(record.box, start, assignment.rank),
                    lambda files: self._fetched(record, start, files),
                )
        self._send_goal(record)

    def _fetched(self, record: WorkerRecord, start: Mapping[str, Any], files: Mapping[str, str]) -> None:
        record.local_start = {**start, "files": dict(files)}
        record.save_assignment()
        if record.start == start:
            self._send_goal(record)

    def _send_goal(self, record: WorkerRecord) -> None:
        """Repeat the goal, if there is one to tell and everything that it names is there."""
        if not (record.connected and record.provisioned) or record.goal is None:
            return
        start, local = record.start, record.local_start
        waits_for_state = start is not None and not _same_point(local, start)
        if waits_for_state and record.goal in ("prepare", "train"):
            return
        self._sockets.send(record.key, {"goal": record.goal, "start": None if waits_for_state else local})

    def _in_background(
        self,
        record: WorkerRecord,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        wait_seconds: float = FIRST_RETRY_SECONDS,
    ) -> None:
        """Run `work` in a thread, again while it says "not yet", and `done` with its result, as long as the
        worker lives."""

        def wanted() -> bool:
            return record.alive and record.kill_reason is None and record.key in self._pool.records

        def retry() -> None:
            if wanted():
                longer_seconds = min(LONGEST_RETRY_SECONDS, 2 * wait_seconds)
                self._in_background(record, work, done, longer_seconds)

        def run() -> None:
            try:
                result = work()
            except NotYet as error:
                logger.warning("worker %s waits: %s", record.key, error)
                self._loop.post_later(wait_seconds, retry)
            except ProvisioningError as error:
                reason, message = error.reason, str(error)
                self._loop.post(lambda: self.fail(record, reason, message))
            except Exception as error:  # a malformed order: said as this worker's failure, with its cause
                if is_full(error):
                    logger.warning("worker %s waits: %s", record.key, error)
                    self._loop.post_later(wait_seconds, retry)
                    return
                logger.exception("worker %s cannot be prepared", record.key)
                message = f"{type(error).__name__}: {error}"
                self._loop.post(lambda: self.fail(record, "start_failed", message))
            else:
                self._loop.post(lambda: done(result) if wanted() else None)

        self._threads.submit(run)

    # What workers say

    def hear(self, key: str, message: Message | None) -> None:
        """Take a message of a worker; None: its connection is lost."""
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
        if record.assignment is None:
            return
        if hello.warm:
            self._assign(record)
        else:
            self._send_goal(record)

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
            # A loader that the kernel killed looks to the worker like an error of the function.
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
        """A worker said, or left, what is not taken: tell its people, a few times."""
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
        """A file is durable: report it, then tell the worker."""
        upload = result.upload
        record = self._pool.records.get(upload.worker_key)
        for reason in result.refused if record is not None else ():
            assert record is not None
            self._refuse(record, "artifact", reason)
        if result.event is not None:
            self._outbox.add(result.event, worker_key=upload.worker_key)
            self._changed()
        self._sockets.send(upload.worker_key, {"stored": upload.written.path})

    # Ends

    def fail(self, record: WorkerRecord, reason: str, message: str) -> None:
        """A worker cannot go on: report it and end it."""
        if not record.alive or record.phase in ENDING_PHASES:
            return
        record.phase = "failed"
        record.save_progress()
        self._report_failure(record, reason, message)
        self._pool.kill(record, message)

    def ended(self, record: WorkerRecord) -> None:
        """A worker's process is gone: if nobody wanted that and it did not say why, that is a failure to
        report."""
        self._changed()
        assignment, status = record.assignment, record.exit
        if assignment is None or status is None:
            return
        completing = any(upload.written.kind == "final" for upload in self._uploads.pending(record.key))
        expected = record.phase in ENDING_PHASES or record.goal == "stop" or completing
        if record.timed_out and not expected:
            seconds = _measuring_seconds(assignment)
            self._report_failure(
                record, "measuring_timeout", f"measuring took longer than {seconds:.0f} s and was ended"
            )
            return
        if expected or record.kill_reason not in (None, LEASE_ENDED):
            return
        if status.reason in EXCEEDED:
            self._report_failure(record, status.reason, status.message)
            return
        reason = "start_failed" if record.phase in STARTING_PHASES else "killed"
        self._report_failure(record, reason, _describe_end(record))

    def _report_failure(self, record: WorkerRecord, reason: str, message: str) -> None:
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


def _measuring_seconds(assignment: Assignment) -> float:
    """How long a measurement may take in all: whatever it fetches, imports and trains."""
    profile = assignment.specification.get("profile") or {}
    return max(0.0, float(profile.get("max_seconds", 0.0)))


def _same_point(local: Mapping[str, Any] | None, start: Mapping[str, Any]) -> bool:
    """Whether what is in the box is what `start` names."""
    return local is not None and all(local.get(key) == start[key] for key in start)


def _number(name: str) -> str:
    """Eight bytes, in hexadecimal, that tell a name from others."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


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
