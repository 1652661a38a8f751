"""Assignment of work to workers: provisioning of their boxes, and their goals."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from workers.agent.hearing import Hearing, measuring_seconds
from workers.agent.machine import clock
from workers.agent.machine.configuration import Configuration
from workers.agent.machine.durable_files import is_full
from workers.agent.machine.main_loop import MainLoop
from workers.agent.orders.desired_state import GenerationDesire, Goal, WorkerSlot, goal_rank
from workers.agent.processes.inventory import Accelerator
from workers.agent.processes.worker_pool import STOP_GRACE_SECONDS, WorkerPool
from workers.agent.processes.worker_record import Assignment, WorkerRecord
from workers.agent.processes.worker_sockets import WorkerSockets
from workers.agent.storage.provisioning import NotYet, Provisioner, ProvisioningError
from workers.agent.storage.uploads import Uploads

logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 10.0
PROVISIONING_THREADS = 4
# Limits of one worker; a well-behaved one needs a tenth.
EVENTS_OF_A_WORKER = 200
FILES_OF_A_WORKER = 8
# Refusals reported to the job's users; further ones are logged by the agent, then dropped.
TOLD_REFUSALS = 5
LOGGED_REFUSALS = 50
REASON_CHARACTERS = 500


class Assignments:
    """Sends assigned workers their work and goals. All methods run in the main thread.

    `keeps_state`: whether this server has an in-memory store. `worker_disk_bytes`: disk that a worker may
    fill with states of experts; `worker_disk_bytes_per_second`: the rate at which it may use it. `changed`:
    called when a report is due at once.
    """

    def __init__(
        self,
        configuration: Configuration,
        pool: WorkerPool,
        sockets: WorkerSockets,
        provisioner: Provisioner,
        uploads: Uploads,
        hearing: Hearing,
        loop: MainLoop,
        *,
        sandbox_shows_paths: bool,
        keeps_state: bool,
        worker_disk_bytes: int,
        worker_disk_bytes_per_second: float | None,
        changed: Callable[[], None],
    ) -> None:
        self._configuration = configuration
        self._pool = pool
        self._sockets = sockets
        self._provisioner = provisioner
        self._uploads = uploads
        self._hearing = hearing
        self._loop = loop
        self._sandbox_shows_paths = sandbox_shows_paths
        self._keeps_state = keeps_state
        self._worker_disk_bytes = worker_disk_bytes
        self._worker_disk_bytes_per_second = worker_disk_bytes_per_second
        self._changed = changed
        self._threads = ThreadPoolExecutor(PROVISIONING_THREADS, thread_name_prefix="provision")

    def close(self) -> None:
        """Start no new background work."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Actions of the decision

    def start(self, desire: GenerationDesire, slot: WorkerSlot, lease_deadline: float) -> None:
        """Assign a slot's work to a warm worker, or launch a cold one; any problem is reported as its
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
            self._pool.limit(record, measuring_seconds(assignment))
        record.goal, record.start = desire.goal, desire.start
        record.save_assignment()
        if not record.alive:
            assert record.exit is not None
            self._hearing.report_failure(record, record.exit.reason, record.exit.message)
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
        # A sandbox's view is fixed when it is made, so declared paths need a new one.
        return self._pool.launch(accelerator, lease_deadline, data_paths=paths)

    def resume(self, record: WorkerRecord) -> None:
        """Continue with an assigned worker in any state: at its beginning, or after a restart of the
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
        """Send a worker its next goal; a lower goal than the current one is ignored."""
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

    def greeted(self, record: WorkerRecord, warm: bool) -> None:
        """Send an assigned worker that has connected its assignment or goal."""
        if warm:
            self._assign(record)
        else:
            self._send_goal(record)

    # Provisioning

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
            # Sent separately, once the state that it names is in the box.
            "goal": "prepare",
            "start": None,
            "rank": assignment.rank,
            "gpu_index": assignment.gpu_index,
            "handover_port": assignment.handover_port,
            "device": self._device(accelerator),
            "interface_address": self._configuration.interface or self._configuration.address,
            "worker_disk_bytes": self._worker_disk_bytes,
            "worker_disk_bytes_per_second": self._worker_disk_bytes_per_second,
            "worker_disk_writes_bytes": self._configuration.worker_disk_writes_bytes,
            "memory_points": {"share": self._configuration.memory_point_share} if self._keeps_state else None,
        }
        self._sockets.send(record.key, {"assign": message})
        self._send_goal(record)

    def _device(self, accelerator: Accelerator | None) -> dict[str, Any]:
        emulation = self._configuration.emulate
        if accelerator is not None and accelerator.cuda:
            return {"kind": "cuda", "index": 0}  # the only one that is visible
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
        """Fetch the shards that this rank reads of a goal's initial state, then send the goal."""
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
        """Send the current goal if the worker is connected and everything that the goal needs is in the
        box."""
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
        """Run `work` in a thread, retrying while it raises NotYet, and `done` with its result, as long as
        the worker runs."""

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
                self._loop.post(lambda: self._hearing.fail(record, reason, message))
            except Exception as error:  # a malformed order: reported as this worker's failure, with its cause
                if is_full(error):
                    logger.warning("worker %s waits: %s", record.key, error)
                    self._loop.post_later(wait_seconds, retry)
                    return
                logger.exception("worker %s cannot be prepared", record.key)
                message = f"{type(error).__name__}: {error}"
                self._loop.post(lambda: self._hearing.fail(record, "start_failed", message))
            else:
                self._loop.post(lambda: done(result) if wanted() else None)

        self._threads.submit(run)


def _same_point(local: Mapping[str, Any] | None, start: Mapping[str, Any]) -> bool:
    """Whether the state in the box is the one that `start` names."""
    return local is not None and all(local.get(key) == start[key] for key in start)


def _number(name: str) -> str:
    """Return eight bytes of a name's hash, in hexadecimal."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]
