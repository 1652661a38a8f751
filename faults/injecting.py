"""Executes a schedule: each fault begins and ends at its time, and is always undone."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from faults.processes import Found, NotRunningError, Process
from faults.proxy import PASSES, Behaviour, Proxy
from faults.schedule import SEVERAL_PROCESSES, Fault, Kind, Part, Target

#: Ends a fault.
Undo = Callable[[], None]
FILL_PIECE_BYTES = 4 * 1024 * 1024


class Links(Protocol):
    """Network between agents, if this machine can give them separate addresses."""

    def cut(self, name: str) -> Undo:
        """Drop all traffic between the two servers of that name."""

    def slow(self, name: str) -> Undo:
        """Limit the traffic to a low rate."""


@dataclass(frozen=True)
class Deed:
    """A fault as executed. ``begun_at``: None if the target did not exist."""

    fault: Fault
    begun_at: datetime | None
    ended_at: datetime | None
    #: What was hit, for example process ids.
    what: str


@dataclass
class Means:
    """Mechanisms of faults. Parts without their mechanism are not among `targets`."""

    find: Callable[[], Mapping[Target, Found]]
    #: Proxies through which each agent, by its server, reaches the control plane.
    proxies: Mapping[str, Sequence[Proxy]] = field(default_factory=dict)
    links: Links | None = None
    #: A folder on a disk of bounded size for each server.
    disks: Mapping[str, Path] = field(default_factory=dict)
    #: Starts a process that allocates the memory limit of one worker.
    fill_memory: Callable[[], Undo] | None = None
    #: Names of the links between two servers, such as "node-1 node-2".
    peers: Sequence[str] = ()
    #: Whether faults may hit whole servers. Drawn separately: see `schedule`.
    whole_servers: bool = False
    #: Shifts the clocks of a target by a number of seconds. Drawn separately: see `schedule`.
    clocks: Mapping[Target, Callable[[float], Undo]] = field(default_factory=dict)

    def targets(self) -> list[Target]:
        """Return all single targets."""
        found = [target for target in self.find() if target.part not in SEVERAL_PROCESSES]
        found += [Target(Part.CONTROL_LINK, "link", server) for server in self.proxies]
        found += [Target(Part.DISK, "disk", server) for server in self.disks]
        if self.links is not None:
            found += [Target(Part.PEER_LINK, name, name.split()[0]) for name in self.peers]
        if self.fill_memory is not None:
            found.append(Target(Part.MEMORY, "worker"))
        return found

    def servers(self) -> list[Target]:
        """Return targets that comprise several processes of a server."""
        return [target for target in self.find() if self.whole_servers and target.part in SEVERAL_PROCESSES]


def carry_out(
    faults: Sequence[Fault],
    means: Means,
    *,
    stop: threading.Event | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Deed]:
    """Execute all faults in real time. Returns once everything is undone, also when stopped."""
    stop = stop or threading.Event()
    began = time.monotonic()
    waiting = sorted(faults, key=lambda fault: fault.at_seconds)
    lasting: list[tuple[float, int, Undo]] = []
    deeds: list[Deed] = []
    try:
        while (waiting or lasting) and not stop.is_set():
            now = time.monotonic() - began
            due = [entry for entry in lasting if entry[0] <= now]
            for entry in due:
                lasting.remove(entry)
                _end(deeds, entry)
            while waiting and waiting[0].at_seconds <= now:
                fault = waiting.pop(0)
                undo, what = _begin(fault, means)
                say(f"{fault}: {what}")
                deeds.append(Deed(fault, datetime.now(UTC) if undo else None, None, what))
                if undo is not None:
                    lasting.append((now + fault.seconds, len(deeds) - 1, undo))
            times = [entry[0] for entry in lasting] + [fault.at_seconds for fault in waiting[:1]]
            if times:
                stop.wait(max(0.0, min(times) - (time.monotonic() - began)))
    finally:
        for entry in lasting:
            _end(deeds, entry)
    return deeds


def _end(deeds: list[Deed], entry: tuple[float, int, Undo]) -> None:
    _, number, undo = entry
    undo()
    deed = deeds[number]
    deeds[number] = Deed(deed.fault, deed.begun_at, datetime.now(UTC), deed.what)


def _nothing() -> None:
    return None


def _begin(fault: Fault, means: Means) -> tuple[Undo | None, str]:
    """Begin a fault. The undo is None if the target does not exist, for example a process being restarted."""
    part, server = fault.target.part, fault.target.server
    if part is Part.CONTROL_LINK:
        return _all_behave(means.proxies[server], _behaviour(fault)), "begun"
    if part is Part.PEER_LINK and means.links is not None:
        change = means.links.cut if fault.kind is Kind.CUT else means.links.slow
        return change(fault.target.name), "begun"
    if part is Part.DISK:
        return fill(means.disks[server]), "full"
    if part is Part.CLOCK:
        return means.clocks[fault.target](fault.amount), "begun"
    if part is Part.MEMORY and means.fill_memory is not None:
        return means.fill_memory(), "begun"
    return _to_processes(fault, means)


def _all_behave(proxies: Sequence[Proxy], behaviour: Behaviour) -> Undo:
    for proxy in proxies:
        proxy.behave(behaviour)

    def well() -> None:
        for proxy in proxies:
            proxy.behave(PASSES)

    return well


def _behaviour(fault: Fault) -> Behaviour:
    if fault.kind is Kind.CUT:
        return Behaviour(cut=True)
    if fault.kind is Kind.DOUBLE:
        return Behaviour(double=True)
    if fault.kind is Kind.REORDER:
        return Behaviour(hold_back_seconds=fault.amount)
    return Behaviour(delay_seconds=fault.amount)


def _to_processes(fault: Fault, means: Means) -> tuple[Undo | None, str]:
    try:
        found = means.find().get(fault.target)
    except NotRunningError:
        found = None
    if found is None or not found.one_of:
        return None, "there is none just now"
    chosen = found.one_of[min(int(fault.amount * len(found.one_of)), len(found.one_of) - 1)]
    if fault.kind is Kind.RESTART:
        # PostgreSQL's fast shutdown; its supervisor restarts it.
        hit = chosen.send(signal.SIGINT)
    elif fault.kind is Kind.KILL and fault.target.part in SEVERAL_PROCESSES:
        killed = [process for process in found.all_of if process.send(signal.SIGKILL)]
        return (_nothing if killed else None), f"processes {_ids(killed)}"
    elif fault.kind is Kind.KILL:
        hit = chosen.send(signal.SIGKILL)
    else:
        return _freeze(found, chosen, fault.target.part)
    return (_nothing if hit else None), f"process {chosen.pid}"


def _freeze(found: Found, chosen: Process, part: Part) -> tuple[Undo | None, str]:
    """Freeze the processes of a target: a launcher alone, a server with its children."""
    several = found.all_of if part not in (Part.LAUNCHER,) else (chosen,)
    frozen = [process for process in several if process.send(signal.SIGSTOP)]

    def go_on() -> None:
        for process in frozen:
            process.send(signal.SIGCONT)

    return (go_on if frozen else None), f"processes {_ids(frozen)}"


def _ids(processes: Sequence[Process]) -> str:
    return " ".join(str(process.pid) for process in processes)


def fill(folder: Path) -> Undo:
    """Fill the disk that a folder is on, with one file in it. Only for disks of bounded size.

    Raises ValueError if the folder is on the machine's own disk.
    """
    if os.stat(folder).st_dev == os.stat(folder.parent.parent).st_dev:
        raise ValueError(f"{folder} has no disk of its own: filling it would fill the machine's")
    file = folder / "fill"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    size, piece = 0, FILL_PIECE_BYTES
    try:
        while piece >= 1:
            try:
                os.posix_fallocate(descriptor, size, piece)
                size += piece
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                piece //= 2
    finally:
        os.close(descriptor)

    def empty() -> None:
        with suppress(FileNotFoundError):
            file.unlink()

    return empty
