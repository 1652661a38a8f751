"""Seeded schedules of faults (pure). The same seed, length and targets give the same schedule on every
machine."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """A kind of process, or of connection or resource between processes."""

    AGENT = "agent"
    WORKER = "worker"
    LAUNCHER = "launcher"
    NURSERY = "nursery"
    MEMORY_STORE = "in-memory store"
    WEB = "web server"
    AGENT_API = "agents' server"
    STREAMS = "streams' server"
    PLANNER = "planner"
    PLANNER_CHILD = "planner's child"
    CELERY = "Celery worker"
    BEAT = "beat"
    BROKER = "broker"
    DATABASE = "PostgreSQL"
    CONTROL_LINK = "link to the control plane"
    PEER_LINK = "link between two agents"
    DISK = "an agent's disk"
    MEMORY = "a worker's memory"
    CLOCK = "wall clock"
    SERVER = "whole server"
    WATCHERS = "agent and launchers"


class Kind(StrEnum):
    """A kind of fault."""

    KILL = "kill -9"
    FREEZE = "freeze"
    RESTART = "restart"
    CUT = "cut"
    DELAY = "delay"
    DOUBLE = "double messages"
    REORDER = "hold messages back"
    FILL = "fill"
    JUMP = "let jump"


@dataclass(frozen=True, order=True)
class Target:
    """One target of faults. ``server``: the server that it belongs to; empty: the control plane."""

    part: Part
    name: str
    server: str = ""


@dataclass(frozen=True, order=True)
class Fault:
    """A fault of ``kind`` hits ``target`` at ``at_seconds`` after the schedule's begin, for ``seconds`` (0:
    at once).

    ``amount`` depends on the kind: delay of each message in seconds; clock offset in seconds (negative:
    back); which of several processes of the same name is hit, as a fraction from 0 to 1.
    """

    at_seconds: float
    kind: Kind
    target: Target
    seconds: float = 0.0
    amount: float = 0.0

    @property
    def ends_at(self) -> float:
        """End of the fault, in seconds after the schedule's begin."""
        return self.at_seconds + self.seconds

    def __str__(self) -> str:
        what = f"{self.at_seconds:6.2f} s  {self.kind} {self.target.part} {self.target.name}"
        if self.kind is Kind.JUMP:
            what += f" by {self.amount:+.0f} s"
        return what + (f" for {self.seconds:.1f} s" if self.seconds else "")


#: Possible kinds of faults for each part, with weights.
KINDS: dict[Part, dict[Kind, float]] = {
    Part.AGENT: {Kind.KILL: 2, Kind.FREEZE: 2},
    Part.WORKER: {Kind.KILL: 2, Kind.FREEZE: 1},
    Part.LAUNCHER: {Kind.KILL: 2, Kind.FREEZE: 1},
    Part.NURSERY: {Kind.KILL: 1, Kind.FREEZE: 1},
    Part.MEMORY_STORE: {Kind.KILL: 1, Kind.FREEZE: 1},
    Part.WEB: {Kind.KILL: 1, Kind.FREEZE: 1},
    Part.AGENT_API: {Kind.KILL: 1, Kind.FREEZE: 1},
    Part.STREAMS: {Kind.KILL: 1, Kind.FREEZE: 1},
    Part.PLANNER: {Kind.KILL: 1, Kind.FREEZE: 1},
    Part.PLANNER_CHILD: {Kind.KILL: 1, Kind.FREEZE: 1},
    Part.CELERY: {Kind.KILL: 1, Kind.FREEZE: 1},
    Part.BEAT: {Kind.KILL: 1, Kind.FREEZE: 1},
    Part.BROKER: {Kind.KILL: 1, Kind.FREEZE: 1},
    # A clean shutdown, and one that loses memory; both read the log at the next start.
    Part.DATABASE: {Kind.RESTART: 1, Kind.KILL: 1, Kind.FREEZE: 1},
    Part.CONTROL_LINK: {Kind.CUT: 2, Kind.DELAY: 2, Kind.DOUBLE: 2, Kind.REORDER: 2},
    Part.PEER_LINK: {Kind.CUT: 2, Kind.DELAY: 1},
    Part.DISK: {Kind.FILL: 1},
    Part.MEMORY: {Kind.FILL: 1},
    Part.CLOCK: {Kind.JUMP: 1},
    # All processes of a server: it is lost, or frozen like a machine under live migration.
    Part.SERVER: {Kind.KILL: 1, Kind.FREEZE: 1},
    # Processes that should end a worker whose lease has expired, while the worker continues.
    Part.WATCHERS: {Kind.FREEZE: 1},
}
#: Parts that comprise several processes of a server.
SEVERAL_PROCESSES = frozenset({Part.SERVER, Part.WATCHERS})
#: Kinds without duration: the supervisor restarts a killed process.
AT_ONCE = frozenset({Kind.KILL, Kind.RESTART})
#: Mean seconds between two faults, and the maximum number of faults.
MEAN_SECONDS_BETWEEN = 3.0
MEAN_SECONDS_BETWEEN_SERVERS = 12.0
MOST_FAULTS = 64
#: Of the faults with a duration, this share lasts long enough for a silent server to be given up.
LONG_SHARE = 0.2
SHORT_SECONDS = (0.5, 5.0)
LONG_SECONDS = (8.0, 26.0)
LONGEST_DELAY_SECONDS = 1.5
#: Above this a delayed message arrives after later ones: agents no longer wait for its answer.
HELD_BACK_SECONDS = (2.0, 12.0)
#: Clock offsets: seconds as often as minutes or hours.
JUMP_SECONDS = (1.0, 4 * 3600.0)


def schedule(
    seed: int,
    seconds: float,
    processes: Iterable[Target],
    clocks: Iterable[Target] = (),
    servers: Iterable[Target] = (),
) -> list[Fault]:
    """Return the faults in order of time: at least one if there is a target and time.

    All of them end by ``seconds``. Faults with a duration do not overlap on one target. Targets are drawn by
    part first, so that the one planner is hit as often as six workers. Faults of ``clocks`` and of whole
    ``servers`` are drawn separately: the rest of a seed's schedule does not depend on them.

    Raises ValueError for a length that is not positive and finite.
    """
    # A string, so that neighbouring seeds give unrelated schedules.
    faults = _drawn(random.Random(f"faults {seed}"), seconds, processes)
    faults += _drawn(random.Random(f"clocks {seed}"), seconds, clocks)
    several = _drawn(random.Random(f"servers {seed}"), seconds, servers, MEAN_SECONDS_BETWEEN_SERVERS)
    return sorted(faults + several)


def _drawn(
    chance: random.Random, seconds: float, among: Iterable[Target], mean_seconds: float = MEAN_SECONDS_BETWEEN
) -> list[Fault]:
    if not 0.0 < seconds < float("inf"):
        raise ValueError(f"a schedule lasts a positive number of seconds, not {seconds}")
    targets: dict[Part, list[Target]] = {}
    for target in sorted(set(among)):
        targets.setdefault(target.part, []).append(target)
    if not targets:
        return []
    busy_until: dict[Target, float] = {}
    faults: list[Fault] = []
    at = min(chance.expovariate(1 / mean_seconds), seconds * 0.5)
    while at < seconds and len(faults) < MOST_FAULTS:
        fault = _fault(chance, at, seconds, targets)
        # Two faults at the same moment would have no order.
        if busy_until.get(fault.target, -1.0) < fault.at_seconds:
            faults.append(fault)
            busy_until[fault.target] = fault.ends_at
        at += chance.expovariate(1 / mean_seconds)
    return faults


def _fault(chance: random.Random, at: float, end: float, targets: dict[Part, list[Target]]) -> Fault:
    part = chance.choice(list(targets))
    target = chance.choice(targets[part])
    kinds = KINDS[part]
    kind = chance.choices(list(kinds), weights=list(kinds.values()))[0]
    bounds = LONG_SECONDS if chance.random() < LONG_SHARE else SHORT_SECONDS
    lasts = chance.uniform(*bounds)
    amount = chance.random()
    if kind is Kind.DELAY:
        amount *= LONGEST_DELAY_SECONDS
    elif kind is Kind.REORDER:
        amount = HELD_BACK_SECONDS[0] + amount * (HELD_BACK_SECONDS[1] - HELD_BACK_SECONDS[0])
    elif kind is Kind.JUMP:
        amount = _jump_seconds(amount)
    at = round(at, 3)
    return Fault(at, kind, target, 0.0 if kind in AT_ONCE else min(lasts, end - at), amount)


def _jump_seconds(fraction: float) -> float:
    """Return an offset in either direction, whose logarithm is uniform."""
    least, most = JUMP_SECONDS
    size = least * (most / least) ** abs(2 * fraction - 1)
    return round(size if fraction >= 0.5 else -size, 1)
