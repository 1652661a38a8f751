"""Limits of a worker's memory and processes, and their enforcement (standard library only).

A kernel control group if one can be made: version 2, else version 1. Otherwise a watchdog counts the
resources of the worker's processes and has it killed. Either way the launcher learns what was exceeded.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from punctual.protocol.limits import MEMORY_EXCEEDED, PROCESSES_EXCEEDED

EXCEEDED = (MEMORY_EXCEEDED, PROCESSES_EXCEEDED)
MEBIBYTE = 1024**2
PREFIX = "punctual-"
#: The in-memory store gets 1 / this of the machine's memory, unless a setting says otherwise.
STORE_PART = 8
#: A fork bomb reaches its limit at once, and its last processes come and go.
_PROCESSES_MARGIN = 4
#: Share of its limit that a group must have used for a kill to count as the limit's.
_NEARLY = 0.95

Controller = Literal["memory", "pids"]


@dataclass(frozen=True)
class ResourceLimits:
    """The limits of one worker. `groups` maps a controller to the folder for its control groups."""

    memory_bytes: int
    processes: int
    groups: Mapping[str, str]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ResourceLimits:
        """Parse the result of `to_json`."""
        return cls(value["memory_bytes"], value["processes"], dict(value["groups"]))

    def to_json(self) -> dict[str, Any]:
        """Return these limits as plain JSON values."""
        return {"memory_bytes": self.memory_bytes, "processes": self.processes, "groups": dict(self.groups)}

    def message(self, reason: str) -> str:
        """Return the explanation for users whose worker exceeded a limit."""
        if reason == MEMORY_EXCEEDED:
            return (
                f"it used more than {self.memory_bytes // MEBIBYTE} MiB of memory, which is what a worker "
                f"here may use"
            )
        return (
            f"it started more than {self.processes} processes and threads, which is what a worker here may "
            f"have"
        )


class WorkerResources:
    """The resources of the worker `name`, managed by its launcher."""

    def __init__(self, limits: ResourceLimits, name: str) -> None:
        self.limits = limits
        self._folders: dict[str, Path] = {}
        for controller, parent in limits.groups.items():
            folder = Path(parent) / (PREFIX + name)
            try:
                folder.mkdir(exist_ok=True)
                _set_limit(controller, folder, limits)
            except OSError as error:
                sys.stderr.write(f"no control group for {controller}: {error}; a watchdog counts\n")
                with contextlib.suppress(OSError):
                    folder.rmdir()
            else:
                self._folders[controller] = folder

    def take(self, process_id: int) -> None:
        """Add a process, which has no children yet, to the worker's groups."""
        for controller, folder in list(self._folders.items()):
            try:
                (folder / "cgroup.procs").write_text(str(process_id))
            except OSError as error:
                sys.stderr.write(f"no control group for {controller}: {error}; a watchdog counts\n")
                del self._folders[controller]
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def exceeded(self) -> str | None:
        """Return the limit that was exceeded, or None. For the launcher, the ancestor of all of the worker's
        processes."""
        told = exceeded_in_groups(self._folders)
        if told is not None or set(self._folders) >= {"memory", "pids"}:
            return told
        tree = descendants(os.getpid())
        if "pids" not in self._folders:
            tasks = sum(_tasks(process_id) for process_id in tree)
            if tasks + _PROCESSES_MARGIN >= self.limits.processes:
                return PROCESSES_EXCEEDED
        # Twice, because processes that end during the count leave their share of common memory to others.
        limit = self.limits.memory_bytes
        if "memory" not in self._folders and all(_memory_bytes(tree, limit) > limit for _ in range(2)):
            return MEMORY_EXCEEDED
        return None

    def close(self) -> None:
        """Remove the control groups, once the worker has no processes left."""
        for folder in self._folders.values():
            with contextlib.suppress(OSError):
                folder.rmdir()


def exceeded_in_groups(folders: Mapping[str, Path]) -> str | None:
    """Return the limit by which the kernel restricted a worker, or None."""
    if "memory" in folders and _memory_exceeded(folders["memory"]):
        return MEMORY_EXCEEDED
    if "pids" in folders and _count(folders["pids"] / "pids.events", "max") > 0:
        return PROCESSES_EXCEEDED
    return None


def groups_of(limits: ResourceLimits, name: str) -> dict[str, Path]:
    """Return the control groups of the worker `name` that its launcher has made."""
    found = {controller: Path(parent) / (PREFIX + name) for controller, parent in limits.groups.items()}
    return {controller: folder for controller, folder in found.items() if folder.is_dir()}


def _set_limit(controller: str, folder: Path, limits: ResourceLimits) -> None:
    if controller == "pids":
        (folder / "pids.max").write_text(str(limits.processes))
    elif (folder / "memory.max").exists():
        (folder / "memory.max").write_text(str(limits.memory_bytes))
        with contextlib.suppress(OSError):
            (folder / "memory.swap.max").write_text("0")
    else:
        (folder / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
        with contextlib.suppress(OSError):
            (folder / "memory.memsw.limit_in_bytes").write_text(str(limits.memory_bytes))


def _memory_exceeded(folder: Path) -> bool:
    """Whether the kernel killed because of this limit, rather than because the whole machine ran out of
    memory."""
    if (folder / "memory.events").exists():
        events = folder / "memory.events"
        return _count(events, "oom_kill") > 0 and _count(events, "max") > 0
    if _count(folder / "memory.oom_control", "oom_kill") == 0:
        return False
    try:
        most = int((folder / "memory.max_usage_in_bytes").read_text())
        return most >= _NEARLY * int((folder / "memory.limit_in_bytes").read_text())
    except (OSError, ValueError):
        return False


def _count(file: Path, name: str) -> int:
    try:
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


# --- where control groups can be made -----------------------------------------------------------------------


def usable_groups() -> dict[str, str]:
    """Return the folder in which this process may make control groups, for each available controller."""
    memberships = dict(_memberships())
    found: dict[str, str] = {}
    unified = _folder(memberships.get(""), "cgroup2", None)
    if unified is not None and _delegate(unified):
        return {"memory": str(unified), "pids": str(unified)}
    for controller in ("memory", "pids"):
        folder = _folder(memberships.get(controller), "cgroup", controller)
        if folder is not None and _can_make_groups(folder):
            found[controller] = str(folder)
    return found


def remove_left_over(groups: Mapping[str, str]) -> None:
    """Remove groups of killed launchers; the kernel keeps those that still contain a process."""
    for parent in set(groups.values()):
        for folder in Path(parent).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _memberships() -> Iterator[tuple[str, str]]:
    """Yield (controller, path of this process's group); the controller is empty for version 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _folder(path: str | None, kind: str, controller: str | None) -> Path | None:
    """Return where that group is visible, if its hierarchy is mounted."""
    if path is None:
        return None
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        root, mount_point = before.split(" ")[3:5]
        file_system, _, options = after.split(" ", 2)
        if file_system != kind or (controller is not None and controller not in options.split(",")):
            continue
        if path != root and not path.startswith(root.rstrip("/") + "/"):
            continue
        folder = Path(mount_point) / path[len(root.rstrip("/")) :].lstrip("/")
        if folder.is_dir():
            return folder
    return None


def _delegate(folder: Path) -> bool:
    """Enable memory and process limits for groups below `folder`, of version 2."""
    try:
        if not {"memory", "pids"} <= set((folder / "cgroup.controllers").read_text().split()):
            return False
        if not {"memory", "pids"} <= set((folder / "cgroup.subtree_control").read_text().split()):
            _move_into_leaf(folder)
            (folder / "cgroup.subtree_control").write_text("+memory +pids")
    except OSError:
        return False
    return _can_make_groups(folder)


def _move_into_leaf(folder: Path) -> None:
    """Move this process into a leaf group if it is alone: except for the root, a group with limited
    sub-groups may contain no process."""
    own = str(os.getpid())
    if (folder / "cgroup.type").exists() and (folder / "cgroup.procs").read_text().split() == [own]:
        leaf = folder / "agent"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(own)


def _can_make_groups(folder: Path) -> bool:
    probe = folder / f"{PREFIX}probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return os.access(folder / "cgroup.procs", os.W_OK)


def host_memory_bytes() -> int:
    """Return this machine's memory, or the limit of this process's control group."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memberships = dict(_memberships())
    for folder, file in (
        (_folder(memberships.get(""), "cgroup2", None), "memory.max"),
        (_folder(memberships.get("memory"), "cgroup", "memory"), "memory.limit_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            if folder is not None:
                total = min(total, int((folder / file).read_text()))
    return total


def store_bytes(asked: int | None) -> int:
    """Return the memory for recovery points: as configured, else a part of the machine's."""
    return host_memory_bytes() // STORE_PART if asked is None else asked


# --- the watchdog's counting --------------------------------------------------------------------------------


def descendants(ancestor: int) -> list[int]:
    """Return all processes below `ancestor`, which is their reaper or contains it."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (fields := _statistics(entry.name)):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = children.pop(waiting.pop(), [])
        found.extend(below)
        waiting.extend(below)
    return found


def _statistics(process_id: int | str) -> list[bytes]:
    """Return a process's fields in /proc after its name; none if it has ended."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_bytes()
    except OSError:
        return []
    return stat[stat.rfind(b")") + 2 :].split()


def _tasks(process_id: int) -> int:
    fields = _statistics(process_id)
    return int(fields[17]) if fields else 0


def _memory_bytes(tree: list[int], limit_bytes: int) -> int:
    """Return the memory of the processes. Shared memory is counted once, which is slower, only if the simple
    sum exceeds the limit."""
    resident = {process_id: _resident_bytes(process_id) for process_id in tree}
    if sum(resident.values()) <= limit_bytes:
        return sum(resident.values())
    return sum(min(whole, _proportional_bytes(process_id, whole)) for process_id, whole in resident.items())


def _resident_bytes(process_id: int) -> int:
    try:
        fields = Path(f"/proc/{process_id}/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _proportional_bytes(process_id: int, otherwise: int) -> int:
    try:
        text = Path(f"/proc/{process_id}/smaps_rollup").read_text()
    except PermissionError:  # the process is not inspectable
        return otherwise
    except OSError:
        return 0
    match = re.search(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)
    return 1024 * int(match[1]) if match else 0  # it has ended
