"""The node's in-memory store as its agent sees it: started, found again, told what is wanted of it.

The store is a process of its own, which outlives the agent. It is told all that it needs to know again and
again: until when the server's lease runs, which workers it serves, and which jobs it is to remember. It
answers each time. One that does not is reported as silent, and is replaced after a while.
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

from recovery.store import process, wire
from recovery.store.sockets import connect
from workers.agent.machine import clock
from workers.agent.orders.desired_state import DesiredState
from workers.agent.processes.runtime_staging import SOURCE_ROOT
from workers.agent.processes.worker_record import WorkerRecord

logger = logging.getLogger(__name__)

#: One that has ended is started again, but not in a loop.
PAUSE_SECONDS = 5.0
ANSWER_SECONDS = 1.0
#: It is asked so often, whatever there is to say.
ASK_SECONDS = 1.0
#: Without an answer for so long, what it holds does not count: durable checkpoints alone protect what trains.
#: It answers within milliseconds; this is for a machine that is busy.
SILENT_SECONDS = 5.0
#: After so long another one takes its place. It copies and takes memory in threads, beside its answers; to
#: give memory back takes a second for some gigabytes.
STANDS_STILL_SECONDS = 30.0
#: Where the agent has not looked for longer than this, it may have stood still itself.
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
        """Find the store that an earlier agent left, if there is one.

        Args:
            limit_bytes: what all shards may take. worker_bytes: what those of one worker may. address: on
                which it listens for other stores. links: emulated ones that its copies take (`rates`, and the
                `rack` of this server), served in `folder`.
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
        #: Questions that are not answered yet.
        self._unanswered = 0
        #: To the oldest so many of them the answers are about what is nobody's any more.
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
        """Tell the store what is so now, and hear what it holds.

        Args:
            desired: which jobs it remembers, and what it has to do with other stores; None while that is not
                known.
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
        """What the control plane is told: None where there was no store yet. What was heard from a store that
        is silent now is told as that."""
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
        """This server's work was given away: what is held is nobody's any more."""
        if self._connection is not None:
            self._told = None
            nobody = self._peers("", None, ())
            self._unanswered += 1
            self._void = self._unanswered
            self._say({"state": {"lease": 0.0, "jobs": [], "serve": [], "peers": nobody}})
            self._report = None

    def end(self) -> None:
        """End the store: its workers have ended too."""
        self._say({"quit": True})
        self.close()

    def close(self) -> None:
        """Let go of the store, which goes on."""
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
        """Raises OSError where the store takes nothing for a while."""
        assert self._connection is not None
        self._connection.settimeout(ANSWER_SECONDS)
        wire.send(self._connection, message)
        self._connection.setblocking(False)

    def _listen(self) -> None:
        """Hear what the store has answered; replace one that stands still."""
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
        """What the store held is lost with it, as far as anybody knows."""
        self.close()
        self._silence_seconds = 0.0
        self._report, self._heard_at = self._nothing(problem), clock.boot_time_seconds()

    def _connect(self) -> bool:
        try:
            connection = connect(self._folder, wire.CONTROL_NAME, blocking=False)
        except BlockingIOError:
            # It takes no callers any more: as good as a question without an answer.
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
        """Start the process where none runs; whether it answers already."""
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
                    start_new_session=True,  # it survives the agent, and signals for the agent's group
                    cwd="/",
                    env={"PATH": os.defpath},
                )
        except OSError as error:
            logger.error("the in-memory store cannot be started: %s", error)
        return False

    def _lost(self, error: Exception) -> None:
        logger.warning("the in-memory store does not answer: %s", error)
        if isinstance(error, TimeoutError):
            self.close()  # it takes nothing, but is there: how long it is silent goes on
        else:
            self._forget("the in-memory store ended: what it held is lost")
        if self._process is not None:
            self._process.poll()
