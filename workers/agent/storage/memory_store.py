"""The agent's side of the node's in-memory store: starts it, finds it again, sends it its state.

The store is a separate process, which outlives the agent. The agent repeatedly sends it all that it needs:
the server's lease, the workers to serve, and the jobs to remember. It answers each message. A store that does
not answer is reported as silent, and later replaced.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from emulated_links.sockets import connect
from recovery.store import process, wire
from workers.agent.machine import clock
from workers.agent.orders.desired_state import DesiredState
from workers.agent.processes.runtime_staging import SOURCE_ROOT
from workers.agent.processes.worker_record import WorkerRecord

logger = logging.getLogger(__name__)

#: Pause before an ended store is started again.
PAUSE_SECONDS = 5.0
ANSWER_SECONDS = 1.0
#: Interval of messages, even without news.
ASK_SECONDS = 1.0
#: After this silence its contents do not count, and only durable checkpoints protect training. It answers
#: within milliseconds; the margin is for a busy machine.
SILENT_SECONDS = 5.0
#: After this silence it is replaced. It copies and allocates in threads, without delaying its answers;
#: releasing some gigabytes takes a second.
STANDS_STILL_SECONDS = 30.0
#: If the agent's last check was longer ago, the agent itself may have been frozen.
_LONGEST_LOOK_SECONDS = 1.0
_MOST_UNANSWERED = 8


class MemoryStore:
    """Keeps a store running while workers have state to keep. For the agent's main thread."""

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        worker_bytes: int,
        address: str,
        links: Mapping[str, Any] | None = None,
    ) -> None:
        """Find the store that an earlier agent left, if any.

        Args:
            limit_bytes: limit of all shards. worker_bytes: limit of one worker's shards. address: on which
                it listens for other stores. links: emulated ones for its copies (`rates`, and the `rack` of
                this server), served in `folder`.
        """
        self._links = links
        self._address = address
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._worker_bytes = worker_bytes
        self._connection: socket.socket | None = None
        self._inbox = wire.Inbox(wire.CONTROL_LIMIT_BYTES)
        self._process: subprocess.Popen[bytes] | None = None
        self._start_not_before = 0.0
        self._told: dict[str, Any] | None = None
        #: Number of unanswered messages.
        self._unanswered = 0
        #: The answers to this many of the oldest ones are void, because the work was given away.
        self._void = 0
        self._silence_seconds = 0.0
        self._looked_at = clock.boot_time_seconds()
        self._report: dict[str, Any] | None = None
        self._heard_at = 0.0
        folder.mkdir(exist_ok=True, mode=0o711)
        self._connect()

    @property
    def enabled(self) -> bool:
        """Whether workers may keep anything here."""
        return self._limit_bytes > 0

    def look(
        self,
        records: Iterable[WorkerRecord],
        lease_deadline: float,
        desired: DesiredState | None,
    ) -> None:
        """Send the store its current state, and read its answers.

        Args:
            desired: which jobs it remembers, and its part with other stores; None while unknown.
        """
        self._listen()
        peers = None if desired is None else desired.memory
        serve = [entry for record in records if (entry := self._entry(record)) is not None]
        wanted = bool(serve) or (peers is not None and peers.keeps_copies())
        if self._connection is None and not (wanted and self.enabled and self._start()):
            return
        state = {
            "lease": lease_deadline,
            "jobs": None if desired is None else sorted(desired.jobs_in_memory()),
            "spare": [] if desired is None else sorted(desired.spare),
            "serve": serve,
            "links": self._links,
            "peers": None if peers is None else self._peers(peers.server, peers.port, peers.groups),
        }
        now = clock.boot_time_seconds()
        is_new = state != self._told and self._unanswered < _MOST_UNANSWERED
        if is_new or (not self._unanswered and now >= self._heard_at + ASK_SECONDS):
            self._told = state
            self._unanswered += 1
            self._say({"state": state})

    def report(self) -> dict[str, Any] | None:
        """Return the report for the control plane; None without any store so far. The last report of a silent
        store is marked as such."""
        if self._silence_seconds < SILENT_SECONDS:
            return self._report and self._aged(self._report)
        problem = f"this server's in-memory store has not answered for {self._silence_seconds:.0f} s"
        return {
            **self._aged(self._report or self._nothing("")),
            "protection": "none",
            "problem": problem,
            "silent_seconds": self._silence_seconds,
        }

    def _aged(self, report: Mapping[str, Any]) -> dict[str, Any]:
        since = max(0.0, clock.boot_time_seconds() - self._heard_at)
        holdings = [{**one, "age_seconds": one["age_seconds"] + since} for one in report["holdings"]]
        return {**report, "holdings": holdings}

    def _nothing(self, problem: str) -> dict[str, Any]:
        return {
            "holdings": [],
            "used_bytes": 0,
            "limit_bytes": self._limit_bytes,
            "protection": "none",
            "problem": problem,
        }

    def forget_everything(self) -> None:
        """Make the store forget everything, because this server's work was given away."""
        if self._connection is not None:
            self._told = None
            nobody = self._peers("", None, ())
            self._unanswered += 1
            self._void = self._unanswered
            self._say({"state": {"lease": 0.0, "jobs": [], "serve": [], "peers": nobody}})
            self._report = None

    def end(self) -> None:
        """End the store, after its workers have ended."""
        self._say({"quit": True})
        self.close()

    def close(self) -> None:
        """Disconnect from the store, which continues."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._unanswered = self._void = 0

    def _peers(self, server: str, port: int | None, groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"server": server, "address": self._address, "port": port, "groups": list(groups)}

    def _entry(self, record: WorkerRecord) -> dict[str, Any] | None:
        assignment = record.assignment
        if assignment is None or assignment.purpose != "training" or not record.alive:
            return None
        return {
            "key": record.key,
            "box": str(record.box),
            "user_id": record.user_id,
            "job": assignment.job,
            "generation": assignment.generation,
            "rank": assignment.rank,
            "world_size": int(assignment.specification.get("world_size") or 1),
            "limit_bytes": self._worker_bytes,
        }

    def _say(self, message: dict[str, Any]) -> None:
        try:
            if self._connection is not None:
                self._send(message)
        except OSError as error:
            self._lost(error)

    def _send(self, message: dict[str, Any]) -> None:
        """Raises OSError if the store does not read for `ANSWER_SECONDS`."""
        assert self._connection is not None
        self._connection.settimeout(ANSWER_SECONDS)
        wire.send(self._connection, message)
        self._connection.setblocking(False)

    def _listen(self) -> None:
        """Read the store's answers; replace it if it hangs."""
        if self._connection is not None:
            try:
                self._hear(self._connection)
            except (OSError, wire.WireError) as error:
                self._lost(error)
        now = clock.boot_time_seconds()
        passed, self._looked_at = now - self._looked_at, now
        if self._unanswered:
            self._silence_seconds += min(passed, _LONGEST_LOOK_SECONDS)
        if self._silence_seconds >= STANDS_STILL_SECONDS:
            self._replace()

    def _hear(self, connection: socket.socket) -> None:
        while True:
            try:
                for message, _none in self._inbox.read(connection):
                    self._answered(message)
            except BlockingIOError:
                return

    def _answered(self, report: dict[str, Any]) -> None:
        self._silence_seconds = 0.0
        self._unanswered = max(0, self._unanswered - 1)
        if self._void:
            self._void -= 1
            return
        self._report, self._heard_at = report, clock.boot_time_seconds()

    def _replace(self) -> None:
        logger.error("the in-memory store has stood still for %.0f s: it is replaced", self._silence_seconds)
        try:
            process.kill(self._folder)
        except OSError as error:
            logger.error("it cannot be killed: %s", error)
        self._forget("the in-memory store stood still and was replaced: what it held is lost")

    def _forget(self, problem: str) -> None:
        """Assume that the store's contents are lost with it."""
        self.close()
        self._silence_seconds = 0.0
        self._report, self._heard_at = self._nothing(problem), clock.boot_time_seconds()

    def _connect(self) -> bool:
        try:
            connection = connect(self._folder, wire.CONTROL_NAME, blocking=False)
        except BlockingIOError:
            # Its backlog is full, which counts as an unanswered message.
            self._unanswered = 1
            return False
        except OSError:
            return False
        connection.setblocking(False)
        self._connection, self._inbox = connection, wire.Inbox(wire.CONTROL_LIMIT_BYTES)
        self._told = None
        self._unanswered = self._void = 0
        return True

    def _start(self) -> bool:
        """Start the process if none runs; return whether it answers already."""
        if self._connect():
            logger.info("the in-memory store is there")
            return True
        now = clock.boot_time_seconds()
        if now < self._start_not_before:
            return False
        self._start_not_before = now + PAUSE_SECONDS
        try:
            with (self._folder / "store.log").open("ab") as log:
                self._process = subprocess.Popen(
                    process.command(sys.executable, SOURCE_ROOT, self._folder, self._limit_bytes),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # survives the agent, and signals to the agent's group
                    cwd="/",
                    env={"PATH": os.defpath},
                )
        except OSError as error:
            logger.error("the in-memory store cannot be started: %s", error)
        return False

    def _lost(self, error: Exception) -> None:
        logger.warning("the in-memory store does not answer: %s", error)
        if isinstance(error, TimeoutError):
            self.close()  # it does not read, but exists: its silence continues
        else:
            self._forget("the in-memory store ended: what it held is lost")
        if self._process is not None:
            self._process.poll()
