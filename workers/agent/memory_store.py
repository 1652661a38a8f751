"""The node's in-memory store as its agent sees it: started, found again, told what is wanted of it.

The store is a process of its own, which outlives the agent. It is told all that it needs to know again and
again: until when the server's lease runs, which workers it serves, and which jobs it is to remember.
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
from workers.agent import clock
from workers.agent.desired_state import DesiredState
from workers.agent.runtime_staging import SOURCE_ROOT
from workers.agent.worker_record import WorkerRecord

logger = logging.getLogger(__name__)

#: One that has ended is started again, but not in a loop.
PAUSE_SECONDS = 5.0
ANSWER_SECONDS = 1.0


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
        self._report: dict[str, Any] | None = None
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
        try:
            assert self._connection is not None
            if state != self._told:
                self._send({"state": state})
                self._told = state
            self._hear()
        except (OSError, wire.WireError) as error:
            self._lost(error)

    def report(self) -> dict[str, Any] | None:
        """What the control plane is told: None while there is no store."""
        return self._report

    def forget_everything(self) -> None:
        """This server's work was given away: what is held is nobody's any more."""
        if self._connection is not None:
            self._told = None
            self._report = None
            nobody = self._peers("", None, ())
            self._say({"state": {"lease": 0.0, "jobs": [], "serve": [], "peers": nobody}})

    def end(self) -> None:
        """End the store: its workers have ended too."""
        self._say({"quit": True})
        self.close()

    def close(self) -> None:
        """Let go of the store, which goes on."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

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

    def _hear(self) -> None:
        assert self._connection is not None
        while True:
            try:
                for message, _none in self._inbox.read(self._connection):
                    self._report = message
            except (BlockingIOError, TimeoutError):
                return

    def _connect(self) -> bool:
        try:
            connection = connect(self._folder, wire.CONTROL_NAME)
        except OSError:
            return False
        connection.setblocking(False)
        self._connection, self._inbox = connection, wire.Inbox(wire.CONTROL_LIMIT_BYTES)
        self._told = None
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
        self.close()
        self._report = None
        if self._process is not None:
            self._process.poll()
