"""Events that wait for the control plane's acknowledgement, one file each, so that a restart loses none."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from workers.agent.machine import clock
from workers.agent.machine.durable_files import delete, read_json, synchronise_folder, write_json_soon
from workers.agent.talking.fair_shares import in_turns

#: Refused events to keep for inspection.
REFUSED_KEPT = 100

# Namespace of workers' event ids: a repeated event keeps its id, and no worker can claim another one's.
_NAMESPACE = uuid.UUID("6f2c1d0a-5d0e-4c55-9a58-8a5f6d1f5a2e")


def event_id(worker_key: str, local_id: str) -> str:
    """Return the control plane's id of the event `local_id` of a worker."""
    return str(uuid.uuid5(_NAMESPACE, f"{worker_key}/{local_id}"))


class EventOutbox:
    """Unacknowledged events in order of occurrence."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._refused = folder / "refused"
        self._refused.mkdir(parents=True, exist_ok=True)
        self._events: dict[str, tuple[Path, dict[str, Any]]] = {}
        for path in sorted(folder.glob("*.json")):
            stored = read_json(path)
            self._events[stored["event"]["id"]] = (path, stored)
        self._next = 1 + max((int(path.stem) for path, _ in self._events.values()), default=0)

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, identifier: object) -> bool:
        return identifier in self._events

    def add(self, event: dict[str, Any], *, worker_key: str) -> None:
        """Store `event` (with its `id`) durably; a second one with the same id changes nothing."""
        if event["id"] in self._events:
            return
        stored = {
            "event": event,
            "worker": worker_key,
            "boot": clock.machine_boot_id(),
            "at_boot_seconds": clock.boot_time_seconds(),
            "at_unix_seconds": time.time(),
        }
        path = self._folder / f"{self._next:012d}.json"
        self._next += 1
        write_json_soon(path, stored)
        self._events[event["id"]] = (path, stored)

    def pending(self, count: int, size_bytes: int) -> list[dict[str, Any]]:
        """Return the oldest events with their age, alternating between jobs; at most `count` and, beyond the
        first, `size_bytes`."""
        by_job: dict[str, list[dict[str, Any]]] = {}
        for _, stored in self._events.values():
            by_job.setdefault(stored["event"]["job"], []).append(stored)
        chosen: list[dict[str, Any]] = []
        for stored in in_turns(list(by_job.values()))[:count]:
            event = {**stored["event"], "age_seconds": _age_seconds(stored)}
            size_bytes -= len(json.dumps(event))
            if chosen and size_bytes < 0:
                break
            chosen.append(event)
        return chosen

    def concerns(self, worker_key: str) -> bool:
        """Whether an event of that worker is still pending."""
        return any(stored["worker"] == worker_key for _, stored in self._events.values())

    def acknowledge(self, identifiers: list[str]) -> None:
        """Forget events that the control plane has applied."""
        removed = [self._events.pop(identifier) for identifier in identifiers if identifier in self._events]
        for path, _ in removed:
            delete(path)
        if removed:
            synchronise_folder(self._folder)

    def refuse(self, identifier: str) -> None:
        """Set aside an event that the control plane will never accept, so that it does not delay the
        others."""
        if identifier not in self._events:
            return
        path, _ = self._events.pop(identifier)
        with suppress(FileNotFoundError):  # the disk was full when the event was added
            path.rename(self._refused / path.name)
        delete(path)
        for old in sorted(self._refused.iterdir())[:-REFUSED_KEPT]:
            old.unlink(missing_ok=True)


def _age_seconds(stored: dict[str, Any]) -> float:
    """Return an event's age by the boot clock, or after a reboot, which resets that clock, by wall-clock
    time."""
    if stored["boot"] == clock.machine_boot_id():
        return max(0.0, clock.boot_time_seconds() - float(stored["at_boot_seconds"]))
    return max(0.0, time.time() - float(stored["at_unix_seconds"]))
