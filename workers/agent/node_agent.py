"""The agent: one loop that compares the desired with the actual state, acts, and reports."""

from __future__ import annotations

import logging
from typing import Any

from emulated_links.load import LinkLoad
from emulated_links.server import LinkServer
from workers.agent.assignments import Assignments
from workers.agent.ending import Ending
from workers.agent.hearing import Hearing
from workers.agent.machine import clock
from workers.agent.machine.configuration import Configuration
from workers.agent.machine.disk_rates import disk_rate_of_worker
from workers.agent.machine.durable_files import write_waiting
from workers.agent.machine.main_loop import MainLoop
from workers.agent.machine.resource_limits import store_bytes
from workers.agent.orders.agent_state import AgentState, Credential
from workers.agent.orders.decisions import (
    ForgetWorker,
    KillWorker,
    SetGoal,
    StartWorker,
    WorkerView,
    decide,
    is_stale,
)
from workers.agent.orders.desired_state import DesiredState, DesiredStateError, parse_desired_state
from workers.agent.processes.inventory import Accelerator, describe
from workers.agent.processes.nursery import Nursery
from workers.agent.processes.sandboxing import Sandboxing
from workers.agent.processes.worker_messages import Message
from workers.agent.processes.worker_pool import WorkerPool
from workers.agent.processes.worker_record import WorkerRecord
from workers.agent.processes.worker_sockets import WorkerSockets
from workers.agent.storage.durable_store import DurableStore
from workers.agent.storage.link_copies import LinkCopies
from workers.agent.storage.memory_store import MemoryStore
from workers.agent.storage.node_cache import NodeCache
from workers.agent.storage.provisioning import Provisioner
from workers.agent.storage.uploads import StoredUpload, Uploads
from workers.agent.talking.calls import Calls
from workers.agent.talking.control_plane import ControlPlane, RequestRefused, Unreachable
from workers.agent.talking.event_outbox import EventOutbox
from workers.agent.talking.link_probes import LinkProbes
from workers.agent.talking.reports import Report, Reporter
from workers.agent.talking.wakeups import WakeupFollower
from workers.agent.this_server import ThisServer

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
# Changes within this time go into one report.
GATHERING_SECONDS = 0.02
# After a restart, living workers reconnect within this time; until then their last known phase counts.
RECONNECTION_SECONDS = 1.0


class NodeAgent:
    """An enrolled server's agent. `run` returns on request, or when the credential is revoked."""

    def __init__(
        self, configuration: Configuration, state: AgentState, credential: Credential, server: ThisServer
    ) -> None:
        """Find the workers of an earlier run. Raises ConfigurationError, OSError."""
        self._configuration = configuration
        self._state = state
        self._loop = MainLoop()
        self._control_plane = ControlPlane(
            configuration.server_url, credential.credential, lease_seconds=credential.lease_seconds
        )
        self._calls = Calls(self._loop, self._fence, self._revoke)
        self._open_links(configuration)
        self._open_reporting(configuration, server.accelerators, server.sandboxing)
        self._open_workers(configuration, server)
        self._open_assignments(configuration, server.sandboxing)
        self._ending = Ending(
            self._pool, self._assignments, self._outbox, self._uploads, configuration.stop_seconds
        )
        self._wakeups = WakeupFollower(
            configuration.stream_url,
            credential.credential,
            lambda version: self._loop.post(lambda: self._woken(version)),
        )
        self._report_seconds = configuration.report_seconds or credential.report_seconds
        self._lease_deadline = 0.0
        self._report_due = clock.boot_time_seconds() + 0.1
        self._reporting = False
        self._fetching = False
        self._fetch_again = True
        self._desired: DesiredState | None = None
        self._lost: list[dict[str, Any]] = []
        self._fenced = False
        self._fences = 0

    def _open_links(self, configuration: Configuration) -> None:
        """Open the network links: emulated ones, if any, and probes of the real ones."""
        emulation = configuration.emulate
        self._links = None if emulation is None else LinkServer(emulation.links)
        self._link_copies = LinkCopies(
            self._links, None if emulation is None else emulation.links, configuration.data / "links"
        )
        self._link_probes = LinkProbes(
            self._loop,
            configuration.interface or configuration.address,
            self._link_copies.served,
            self._report_soon,
        )

    def _open_reporting(
        self, configuration: Configuration, accelerators: tuple[Accelerator, ...], sandboxing: Sandboxing
    ) -> None:
        self._outbox = EventOutbox(configuration.data / "events")
        inventory = describe(accelerators, sandboxing.mode, configuration, sandboxing.limits.memory_bytes)
        self._worker_disk_bytes: int = inventory["worker_disk_bytes"]
        self._worker_disk_rate = disk_rate_of_worker(configuration, len(accelerators))
        self._reporter = Reporter(
            self._state,
            self._outbox,
            inventory,
            None if self._links is None else LinkLoad(self._links),
        )

    def _open_workers(self, configuration: Configuration, server: ThisServer) -> None:
        """Open the worker processes, their sockets, and the server's memory that they share."""
        self._sockets = WorkerSockets(lambda key, message: self._loop.post(lambda: self._hear(key, message)))
        self._nursery = Nursery(server.runtime) if configuration.nursery else None
        self._pool = WorkerPool(
            configuration,
            server.accelerators,
            server.sandboxing,
            self._sockets,
            server.runtime,
            self._nursery,
            self._links,
        )
        self._memory = _memory_store(configuration, len(server.accelerators))
        if self._links is not None:
            # The store's copies share the links with workers' traffic.
            self._links.listen("store", configuration.data / "memory")

    def _open_assignments(self, configuration: Configuration, sandboxing: Sandboxing) -> None:
        """Open the assignment of work to workers, and the storage of their files."""
        self._uploads = Uploads(
            DurableStore(configuration.checkpoint_url, self._link_copies.sent),
            self._loop,
            self._stored,
        )
        self._hearing = Hearing(
            self._pool,
            self._sockets,
            self._uploads,
            self._outbox,
            greeted=self._greeted,
            on_metrics=self._reporter.add_metrics,
            changed=self._report_soon,
        )
        self._assignments = Assignments(
            configuration,
            self._pool,
            self._sockets,
            Provisioner(
                configuration,
                self._control_plane,
                NodeCache(configuration.data / "cache", configuration.cache_limit_bytes),
                copy=sandboxing.mode == "none",
                carry=self._link_copies.received,
            ),
            self._uploads,
            self._hearing,
            self._loop,
            sandbox_shows_paths=sandboxing.mode == "namespaces",
            keeps_state=self._memory.enabled,
            worker_disk_bytes=self._worker_disk_bytes,
            worker_disk_bytes_per_second=self._worker_disk_rate,
            changed=self._report_soon,
        )

    def run(self) -> bool:
        """Run until stopped. Return True for an orderly stop, False if the credential was revoked."""
        self._sockets.start()
        if self._links is not None:
            self._links.start()
        if self._nursery is not None:
            self._nursery.start()
        self._pool.adopt()
        for record in self._pool.records.values():
            if record.assignment is not None:
                self._assignments.resume(record)
                if not record.alive:
                    self._hearing.ended(record)
        if any(record.alive for record in self._pool.records.values()):
            self._report_due = clock.boot_time_seconds() + RECONNECTION_SECONDS
        self._wakeups.start()
        logger.info("agent %s runs", self._configuration.name)
        while not self._ending.finished():
            self._tick()
            self._loop.run_for(self._pause_seconds())
        self._close()
        return not self._ending.revoked

    def stop(self, *, stop_workers: bool) -> None:
        """End the agent; callable from a signal handler. With `stop_workers`, workers store their state and
        end first."""
        self._loop.post(lambda: self._ending.begin("workers" if stop_workers else "agent"))

    def _hear(self, key: str, message: Message | None) -> None:
        self._hearing.hear(key, message)
        self._sockets.handled(key)

    def _greeted(self, record: WorkerRecord, warm: bool) -> None:
        self._assignments.greeted(record, warm)

    def _stored(self, result: StoredUpload) -> None:
        self._hearing.stored(result)

    def _tick(self) -> None:
        """Check leases before anything else: a node that has slept must not act on outdated state."""
        write_waiting()
        for record in self._pool.poll():
            self._hearing.ended(record)
        self._pool.forget_warm()
        if self._fenced and not any(record.alive for record in self._pool.records.values()):
            self._leave_fence()
        if self._ending.what is None and not self._fenced:
            self._reconcile()
            if self._has_lease():
                self._pool.keep_warm(self._lease_deadline)
        if not self._fenced and not self._ending.revoked:
            self._memory.look(self._pool.records.values(), self._lease_deadline, self._desired)
            probe = None if self._desired is None else self._desired.link_probe
            self._link_probes.update(probe, self._lease_deadline)
        self._fetch_desired()
        self._report()

    def _pause_seconds(self) -> float:
        """Return how long there is nothing to do without events."""
        if self._reporting or self._fenced:
            return TICK_SECONDS
        return min(TICK_SECONDS, max(0.0, self._report_due - clock.boot_time_seconds()))

    def _has_lease(self) -> bool:
        return clock.boot_time_seconds() < self._lease_deadline

    # Desired state

    def _woken(self, version: int | None) -> None:
        known = None if self._desired is None else self._desired.version
        if version is None or version != known:
            self._fetch_again = True

    def _fetch_desired(self) -> None:
        if not self._fetch_again or self._fetching or self._ending.what is not None or self._fenced:
            return
        self._fetch_again, self._fetching = False, True
        fences = self._fences
        self._calls.ask(self._control_plane.desired, lambda body: self._obey(body, fences), self._not_fetched)

    def _not_fetched(self) -> None:
        self._fetching = False
        # The answer to the next report says whether another fetch is needed.

    def _obey(self, body: dict[str, Any], fences: int) -> None:
        self._fetching = False
        if fences != self._fences:
            self._fetch_again = True  # requested before the fence: it may name work that was given away
            return
        try:
            desired = parse_desired_state(body)
        except DesiredStateError as error:
            logger.error("the desired state cannot be obeyed: %s", error)
            return
        newest = None if self._desired is None else (self._desired.epoch, self._desired.version)
        if is_stale(desired, newest, self._state.memory):
            logger.warning(
                "an old desired state (epoch %d, version %d) is ignored", desired.epoch, desired.version
            )
            return
        self._desired = desired

    def _reconcile(self) -> None:
        if self._desired is None:
            return
        views = [view for record in self._pool.records.values() if (view := self._view(record)) is not None]
        decision = decide(
            self._desired,
            views,
            self._state.memory,
            may_start=self._has_lease(),
            # Warm workers outlive an agent: they are available while its next nursery still imports.
            most_starts=None if self._pool.may_launch() else self._pool.warm_workers(),
        )
        actions = decision.actions
        try:
            self._state.remember(decision.memory)
        except OSError as error:
            # Without a durable memory nothing may be started; workers may still be ended.
            logger.warning("nothing is begun: %s", error)
            actions = tuple(act for act in actions if isinstance(act, (KillWorker, ForgetWorker)))
        for action in actions:
            match action:
                case StartWorker(desire, slot):
                    self._assignments.start(desire, slot, self._lease_deadline)
                case SetGoal(key, goal, start):
                    self._assignments.set_goal(self._pool.records[key], goal, start)
                case KillWorker(key, reason):
                    self._pool.kill(self._pool.records[key], reason)
                case ForgetWorker(key):
                    self._uploads.give_up(key)
                    self._pool.forget(self._pool.records[key])
        self._lost = [
            {
                "key": f"lost-{desire.job}-{desire.generation}-{slot.rank}",
                "job": desire.job,
                "generation": desire.generation,
                "rank": slot.rank,
                "gpu_index": slot.gpu_index,
                "phase": "exited",
                "iteration": 0,
                "age_seconds": 0.0,
                "exit": {"code": None, "signal": None, "reason": "lost", "message": "nothing is left of it"},
            }
            for desire, slot in decision.lost
        ]

    def _view(self, record: WorkerRecord) -> WorkerView | None:
        told = record.log_offset >= record.log_size
        settled = not record.alive and not self._uploads.pending(record.key) and told
        return record.view(settled=settled)

    # Reports

    def _report_soon(self) -> None:
        self._report_due = min(self._report_due, clock.boot_time_seconds() + GATHERING_SECONDS)

    def _report(self) -> None:
        if self._reporting or self._fenced or clock.boot_time_seconds() < self._report_due:
            return
        self._report_due = clock.boot_time_seconds() + self._report_seconds
        try:
            report = self._reporter.build(
                self._pool.records.values(),
                self._lost,
                self._desired.version if self._desired is not None else 0,
                self._memory.report(),
                self._link_probes.pending_result(),
            )
        except OSError as error:
            logger.error("nothing is reported: %s", error)
            return
        self._reporting = True
        lease_deadline = self._lease_deadline
        self._calls.ask(
            lambda: self._send(report, lease_deadline),
            lambda answer: self._reported(report, answer),
            self._not_reported,
            lambda error: self._report_refused(report, error),
        )

    def _send(self, report: Report, lease_deadline: float) -> dict[str, Any]:
        """In a thread: send the report, unless the agent was frozen since building it and its workers' leases
        ended meanwhile."""
        if report.sent_boot_seconds < lease_deadline <= clock.boot_time_seconds():
            raise Unreachable("the report was not sent before the lease ended, and is not true any more")
        return self._control_plane.report(report.body)

    def _not_reported(self) -> None:
        self._reporting = False
        self._report_due = clock.boot_time_seconds() + self._report_seconds

    def _reported(self, report: Report, answer: dict[str, Any]) -> None:
        self._reporting = False
        self._calls.answered()
        lease_seconds = answer.get("lease_seconds")
        if not isinstance(lease_seconds, (int, float)) or lease_seconds < 0:
            logger.error("the answer to a report grants no lease: %s", answer)
            return
        self._renew_lease(report, lease_seconds)
        self._reporter.answered(report, answer)
        if "link_probe" not in (answer.get("deferred") or []):
            self._link_probes.forget(report.body["link_probe"])
        if len(self._outbox) and not answer.get("deferred"):
            self._report_soon()
        version = answer.get("desired_version")
        if self._desired is None or version != self._desired.version:
            self._fetch_again = True

    def _report_refused(self, report: Report, error: RequestRefused) -> None:
        """Renew the lease: a rejected report still proves that the agent is alive."""
        self._calls.answered()
        if error.lease_seconds is not None:
            self._renew_lease(report, error.lease_seconds)
        self._reporter.refused(report, str(error))

    def _renew_lease(self, report: Report, lease_seconds: float) -> None:
        # Count from when the report was sent; the control plane counts from its later arrival.
        self._lease_deadline = max(self._lease_deadline, report.sent_boot_seconds + lease_seconds)
        self._pool.renew(self._lease_deadline)

    # Ends

    def _fence(self, reason: str) -> None:
        """End all work and drop its reports, because this node's work was given away."""
        logger.error("fenced (%s): ending every worker", reason)
        self._fenced = True
        self._fences += 1
        self._desired = None
        self._memory.forget_everything()
        self._pool.kill_all("the node was fenced")

    def _leave_fence(self) -> None:
        self._fenced = False
        for record in list(self._pool.records.values()):
            self._uploads.give_up(record.key)
            self._pool.forget(record)
        self._lost = []
        self._reporter.forget_everything_measured()
        self._fetch_again = True
        self._report_due = clock.boot_time_seconds()

    def _revoke(self, reason: str) -> None:
        if not self._ending.revoked:
            self._memory.end()
            self._ending.revoke(reason)

    def _close(self) -> None:
        self._wakeups.stop()
        self._uploads.stop()
        self._assignments.close()
        self._calls.close()
        self._sockets.stop()
        self._link_probes.close()
        self._link_copies.close()
        if self._links is not None:
            self._links.stop()
        if self._nursery is not None:
            self._nursery.close()
        if self._ending.what == "workers":
            self._memory.end()
        self._memory.close()
        self._control_plane.close()


def _memory_store(configuration: Configuration, accelerators: int) -> MemoryStore:
    """Return the in-memory store of this server, whose memory its workers share."""
    memory_bytes = store_bytes(configuration.memory_store_bytes)
    emulation = configuration.emulate
    return MemoryStore(
        configuration.data / "memory",
        memory_bytes,
        memory_bytes // max(1, accelerators),
        configuration.interface or configuration.address,
        None if emulation is None else {"rates": emulation.links.to_message(), "rack": configuration.rack},
    )
