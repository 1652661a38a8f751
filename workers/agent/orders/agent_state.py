"""The agent's persistent state: credential, memory of generations, report sequence."""

from __future__ import annotations

import fcntl
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from workers.agent.machine.durable_files import read_json, write_json
from workers.agent.orders.decisions import JobKey, Memory, SeenGeneration
from workers.agent.orders.desired_state import Purpose

# Jobs remembered; the oldest are forgotten first. A forgotten job ended long ago, and the epoch still guards
# it.
REMEMBERED_JOBS = 20_000
# Sequence numbers are reserved on disk in blocks: a report costs no disk write, and no number is used twice.
SEQUENCE_BLOCK = 1024


class AgentStateError(RuntimeError):
    """The agent's data folder cannot be used; the message says why."""


@dataclass(frozen=True)
class Credential:
    """The result of enrolment. `lease_seconds` and `report_seconds` hold until the answer to a report changes
    them."""

    server_id: str
    credential: str
    server_url: str
    lease_seconds: float
    report_seconds: float


class AgentState:
    """The agent's data folder. Only one agent at a time may hold it."""

    def __init__(self, folder: Path) -> None:
        """Create and lock the folder. Raises AgentStateError if another agent holds it or it is not
        writable."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(
                0o711
            )  # a worker that runs as another user passes through to its box, and lists nothing
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AgentStateError(f"another agent runs with the data folder {folder}") from error
        except OSError as error:
            raise AgentStateError(
                f"cannot use the data folder {folder}: {error.strerror or error}"
            ) from error
        self.memory = self._read_memory()
        self._reserved: int = self._read("sequence.json", {"reserved": 0})["reserved"]
        self._sequence: int = self._reserved

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._lock)

    @property
    def credential(self) -> Credential | None:
        """The stored credential, or None before enrolment."""
        value = self._read("credential.json", None)
        return None if value is None else Credential(**value)

    def store_credential(self, credential: Credential) -> None:
        """Store the credential, readable by the agent's user only."""
        write_json(self.folder / "credential.json", asdict(credential))

    def remember(self, memory: Memory) -> None:
        """Make `memory` durable. Call it before any action that it allows."""
        if memory == self.memory:
            return
        kept = dict(list(memory.generations.items())[-REMEMBERED_JOBS:])
        write_json(
            self.folder / "memory.json",
            {
                "epoch": memory.epoch,
                "generations": [
                    [job, purpose, seen.generation, seen.epoch, sorted(seen.started)]
                    for (job, purpose), seen in kept.items()
                ],
            },
        )
        self.memory = Memory(memory.epoch, kept)

    def next_sequence(self) -> int:
        """Return a number larger than all previous ones, across restarts. Raises OSError if none can be
        reserved."""
        if self._sequence + SEQUENCE_BLOCK // 2 >= self._reserved:
            self._reserve_sequence()
        self._sequence += 1
        return self._sequence

    def _reserve_sequence(self) -> None:
        """Reserve the next block. A full disk matters only once the previous block is used up."""
        reserved = self._sequence + SEQUENCE_BLOCK
        try:
            write_json(self.folder / "sequence.json", {"reserved": reserved})
        except OSError:
            if self._sequence >= self._reserved:
                raise
        else:
            self._reserved = reserved

    def _read_memory(self) -> Memory:
        value = self._read("memory.json", None)
        if value is None:
            return Memory()
        generations: dict[JobKey, SeenGeneration] = {
            (job, cast(Purpose, purpose)): SeenGeneration(generation, epoch, frozenset(started))
            for job, purpose, generation, epoch, started in value["generations"]
        }
        return Memory(value["epoch"], generations)

    def _read(self, name: str, default: Any) -> Any:
        try:
            value = read_json(self.folder / name)
        except (OSError, ValueError) as error:
            raise AgentStateError(f"{self.folder / name} cannot be read: {error}") from error
        return default if value is None else value
