"""This node's worker processes: warm, working, ended. Everything here runs in the agent's main thread."""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

from emulated_links.server import LinkServer
from workers.agent.machine import clock
from workers.agent.machine.configuration import Configuration
from workers.agent.machine.durable_files import read_json
from workers.agent.machine.resource_limits import EXCEEDED, exceeded_in_groups, groups_of
from workers.agent.processes import worker_processes
from workers.agent.processes.inventory import Accelerator
from workers.agent.processes.nursery import Nursery
from workers.agent.processes.sandboxing import Sandboxing
from workers.agent.processes.worker_processes import ExitStatus
from workers.agent.processes.worker_record import LEASE_ENDED, WorkerRecord
from workers.agent.processes.worker_sockets import WorkerSockets

logger = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 2.0
#: Time for a launcher to end its worker, in case it is frozen. Short at the end of a lease, because the
#: worker's GPU may soon be given away.
KILL_SECONDS = 5.0
LEASE_END_SECONDS = 0.5
#: Time for the last messages of an ended worker, which are in a local socket.
LAST_WORDS_SECONDS = 5.0
FIRST_WARM_PAUSE_SECONDS = 1.0
LONGEST_WARM_PAUSE_SECONDS = 60.0


class WorkerPool:
    """Launches workers, keeps some warm, renews their leases, ends them, and finds them after a restart."""

    def __init__(
        self,
        configuration: Configuration,
        accelerators: tuple[Accelerator, ...],
        sandboxing: Sandboxing,
        sockets: WorkerSockets,
        runtime: Path,
        nursery: Nursery | None = None,
        links: LinkServer | None = None,
    ) -> None:
        self.records: dict[str, WorkerRecord] = {}
        self._configuration = configuration
        self._accelerators = {accelerator.index: accelerator for accelerator in accelerators}
        self._sandboxing = sandboxing
        self._sockets = sockets
        self._runtime = runtime.name
        self._nursery = nursery
        self._links = links
        self._folder = configuration.data / "workers"
        self._folder.mkdir(exist_ok=True, mode=0o711)
        self._low_priority = worker_processes.can_restore_priority()
        self._warm_pause_seconds = FIRST_WARM_PAUSE_SECONDS
        self._warm_not_before = 0.0

    def accelerator(self, index: int) -> Accelerator | None:
        """Return the accelerator with that index, if it exists."""
        return self._accelerators.get(index)

    def adopt(self) -> None:
        """Find the workers of an earlier run of the agent, living and dead."""
        for folder in sorted(path for path in self._folder.iterdir() if path.is_dir()):
            launch = read_json(folder / "launch.json")
            if launch is None and not (folder / "assignment.json").exists():
                worker_processes.delete_folder(folder)  # the agent ended before it launched anything
                continue
            record = WorkerRecord(
                key=folder.name,
                folder=folder,
                runtime=launch.get("runtime", "") if launch else "",
                user_id=launch["sandbox"]["user_id"] if launch else None,
                accelerator_index=launch.get("accelerator") if launch else None,
                lease_deadline=worker_processes.read_lease(folder),
            )
            record.load()
            record.exit = worker_processes.read_exit(folder)
            self.records[record.key] = record
            if record.alive:
                self._adopt_living(record)
            logger.info("found worker %s (%s)", record.key, "alive" if record.alive else "gone")

    def _adopt_living(self, record: WorkerRecord) -> None:
        record.launcher = worker_processes.find_launcher(record.folder)
        if record.launcher is None:
            # An expired lease makes a launcher that is about to start end at once.
            worker_processes.write_lease(record.folder, 0.0)
            record.kill_reason = record.kill_reason or (
                "not found again" if record.assignment is None else None
            )
            self._gone(record)
            return
        self._listen(record.key, record.box, record.user_id)
        if record.assignment is None and record.runtime != self._runtime:
            self.kill(record, "its runtime is out of date")

    def _listen(self, key: str, box: Path, user_id: int | None) -> None:
        self._sockets.listen(key, box, user_id)
        if self._links is not None:
            self._links.listen(key, box, user_id)

    def _stop_listening(self, key: str) -> None:
        self._sockets.forget(key)
        if self._links is not None:
            self._links.forget(key)

    def may_launch(self) -> bool:
        """Whether a worker may be launched now: not while the nursery imports what the worker would need."""
        return self._nursery is None or self._nursery.look() != "starting"

    def warm_workers(self) -> int:
        """Return the number of warm workers that have imported everything."""
        fitting = [record for record in self._unassigned() if record.warm and record.runtime == self._runtime]
        return sum(record.kill_reason is None for record in fitting)

    def launch(
        self,
        accelerator: Accelerator | None,
        lease_deadline: float,
        *,
        data_paths: Mapping[str, Path] | None = None,
        warm: bool = False,
    ) -> WorkerRecord:
        """Launch a worker. Raises OSError, leaving nothing behind."""
        key = uuid.uuid4().hex
        user_id = self._sandboxing.free_user(
            {record.user_id for record in self.records.values() if record.alive}
        )
        record = WorkerRecord(
            key=key,
            folder=self._folder / key,
            runtime=self._runtime,
            user_id=user_id,
            accelerator_index=accelerator.index if accelerator is not None and accelerator.cuda else None,
            lease_deadline=lease_deadline,
        )
        try:
            worker_processes.make_folder(record.folder, user_id)
            sandbox = self._sandboxing.build(record.box, user_id, accelerator, data_paths or {})
            worker_processes.write_lease(record.folder, lease_deadline)
            self._listen(key, record.box, user_id)
            record.launcher = worker_processes.launch(
                record.folder,
                command=[sys.executable, "-P", "-m", "workers.runtime", "--box", sandbox.box_inside],
                environment=self._sandboxing.environment(sandbox, accelerator),
                sandbox=sandbox,
                log_limit_bytes=self._configuration.log_limit_bytes,
                nice=worker_processes.WARMING_NICE if warm and self._low_priority else 0,
                notes={"runtime": self._runtime, "accelerator": record.accelerator_index},
                nursery=self._nursery if self._nursery and self._nursery.look() == "ready" else None,
            )
        except OSError:
            self._stop_listening(key)
            if record.folder.exists():
                worker_processes.delete_folder(record.folder)
            raise
        self.records[key] = record
        return record

    def unlaunched(self, reason: str, message: str) -> WorkerRecord:
        """Return a record for a worker that could not be started, to report it while it is desired."""
        key = uuid.uuid4().hex
        record = WorkerRecord(key, self._folder / key, self._runtime, None, None, phase="failed")
        record.exit = ExitStatus(None, None, reason, message)
        try:
            record.folder.mkdir(mode=0o711)
            worker_processes.write_exit(record.folder, record.exit)
        except OSError as error:
            logger.warning("a worker that could not be started leaves no trace: %s", error)
        self.records[key] = record
        return record

    def take_warm(self, accelerator: Accelerator) -> WorkerRecord | None:
        """Return a warm worker for that accelerator, at normal priority from now on; ready ones first."""
        index = accelerator.index if accelerator.cuda else None
        fitting = [
            record
            for record in self._unassigned()
            if record.kill_reason is None
            and record.accelerator_index == index
            and record.runtime == self._runtime
        ]
        if not fitting:
            return None
        record = max(fitting, key=lambda candidate: candidate.warm)
        worker_processes.restore_priority(record.folder)
        return record

    def keep_warm(self, lease_deadline: float) -> None:
        """Start a warm worker if one is needed: one at a time, and rarely while starts fail."""
        unassigned = self._unassigned()
        if not self.may_launch():
            return
        if any(not record.warm for record in unassigned) or clock.boot_time_seconds() < self._warm_not_before:
            return
        if len(unassigned) >= self._configuration.warm_workers:
            return
        covered = {record.accelerator_index for record in unassigned}
        for accelerator in self._accelerators.values():
            if accelerator.cuda and accelerator.index in covered:
                continue
            try:
                self.launch(accelerator, lease_deadline, warm=True)
            except OSError as error:
                self._warm_failed(str(error))
            return

    def warmed_up(self, record: WorkerRecord) -> None:
        """Record that a worker is warm."""
        record.warm = True
        self._warm_pause_seconds = FIRST_WARM_PAUSE_SECONDS

    def _warm_failed(self, message: str) -> None:
        logger.error("a warm worker could not start: %s", message)
        self._warm_not_before = clock.boot_time_seconds() + self._warm_pause_seconds
        self._warm_pause_seconds = min(LONGEST_WARM_PAUSE_SECONDS, 2 * self._warm_pause_seconds)

    def _unassigned(self) -> list[WorkerRecord]:
        return [record for record in self.records.values() if record.assignment is None and record.alive]

    def exceeded(self, record: WorkerRecord) -> tuple[str, str] | None:
        """Return reason and message if the worker exceeded its limit of memory or processes."""
        told = worker_processes.read_exit(record.folder)
        if told is not None and told.reason in EXCEEDED:
            return told.reason, told.message
        limits = self._sandboxing.limits
        reason = exceeded_in_groups(groups_of(limits, record.key))
        return None if reason is None else (reason, limits.message(reason))

    def kill(self, record: WorkerRecord, reason: str) -> None:
        """End a worker and all its processes now. Logs once, and tries again at every call."""
        if not record.alive:
            return
        if record.kill_reason is None:
            logger.info("ending worker %s: %s", record.key, reason)
            record.kill_reason = reason
            record.dead_by = clock.boot_time_seconds() + KILL_SECONDS
            record.save_progress()
        # Both, because the launcher checks the lease even if it is not ready for the signal yet.
        record.lease_deadline = 0.0
        worker_processes.write_lease(record.folder, 0.0)
        if record.launcher is not None:
            record.launcher.ask_to_kill()

    def kill_all(self, reason: str) -> None:
        """End every worker now."""
        for record in self.records.values():
            self.kill(record, reason)

    def renew(self, deadline: float) -> None:
        """Extend all workers' leases to `deadline`, except expired ones, whose workers are dead or dying.

        No lease extends beyond the worker's own limit (`limit`).
        """
        now = clock.boot_time_seconds()
        for record in self.records.values():
            until = deadline if record.ends_at is None else min(deadline, record.ends_at)
            if record.alive and record.kill_reason is None and now < record.lease_deadline < until:
                record.lease_deadline = until
                worker_processes.write_lease(record.folder, until)
                self.tell_lease(record)

    def tell_lease(self, record: WorkerRecord) -> None:
        """Send a worker its lease: it begins no iteration later, even if launcher and agent are frozen."""
        self._sockets.send(record.key, {"lease": record.lease_deadline})

    def limit(self, record: WorkerRecord, seconds: float) -> None:
        """Limit a worker's life to `seconds` from now, by the boot clock.

        Its launcher enforces this like the lease: without the agent, and for everything that the worker
        started.
        """
        record.ends_at = clock.boot_time_seconds() + seconds
        if record.alive and record.ends_at < record.lease_deadline:
            record.lease_deadline = record.ends_at
            worker_processes.write_lease(record.folder, record.ends_at)
            self.tell_lease(record)

    def poll(self) -> list[WorkerRecord]:
        """Check for ended workers; return those that ended since the last call."""
        ended = []
        now = clock.boot_time_seconds()
        for record in self.records.values():
            if not record.alive:
                continue
            if record.kill_reason is None and now >= record.lease_deadline:
                record.kill_reason = LEASE_ENDED
                record.dead_by = now + LEASE_END_SECONDS
                record.save_progress()
            if (
                record.kill_reason is None
                and record.stop_deadline is not None
                and now >= record.stop_deadline
            ):
                self.kill(record, "it did not stop by itself")
            if record.dead_by is not None and now >= record.dead_by and record.launcher is not None:
                record.launcher.kill()
            if (record.launcher is None or not record.launcher.is_alive()) and self._all_heard(record, now):
                self._gone(record)
                ended.append(record)
        return ended

    @staticmethod
    def _all_heard(record: WorkerRecord, now: float) -> bool:
        """Whether no more messages can come from a worker whose processes have ended: its connection closes
        after its last messages.

        These may still be in transit, such as that it has completed. A connection that another process keeps
        open is not waited for long.
        """
        record.silent_since = record.silent_since or now
        return not record.connected or now >= record.silent_since + LAST_WORDS_SECONDS

    def _gone(self, record: WorkerRecord) -> None:
        """Record the end of a launcher, and with it of its worker."""
        record.exit = worker_processes.read_exit(record.folder)
        if record.exit is None:
            record.exit = (
                ExitStatus(None, None, "lease_ended", "its launcher did not end it and was killed")
                if record.kill_reason == LEASE_ENDED
                else ExitStatus(
                    None, None, "lost", "its launcher ended without a word (was the machine restarted?)"
                )
            )
            worker_processes.write_exit(record.folder, record.exit)
        record.connected = False
        record.heard_at = clock.boot_time_seconds()
        self._stop_listening(record.key)
        if record.assignment is None:
            if record.kill_reason is None:
                output = record.log_tail(2000).strip()
                self._warm_failed(output or record.exit.message or f"it ended with {record.exit}")
            worker_processes.delete_folder(record.folder)

    def forget(self, record: WorkerRecord) -> None:
        """Delete the remains of an ended worker."""
        del self.records[record.key]
        if record.folder.exists():
            worker_processes.delete_folder(record.folder)

    def forget_warm(self) -> None:
        """Drop the records of ended warm workers, which have nothing to report."""
        for record in [
            record for record in self.records.values() if record.assignment is None and not record.alive
        ]:
            self.forget(record)
