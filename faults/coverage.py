"""Faults that the failure reserve covers (pure).

With a reserve of k servers, a promise has slack for k times the cost of one lost server (fence, lost work, a
start), on the capacity that remains without any k servers. All other delays use up the same slack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from faults.schedule import SEVERAL_PROCESSES, Fault, Kind, Part, Target

#: Outage of a killed process until its supervisor has restarted it, in seconds.
RESTART_SECONDS = 5.0
#: Parts whose loss ends a generation or makes it wait.
_STOP_TRAINING = frozenset(
    {Part.WORKER, Part.LAUNCHER, Part.CONTROL_LINK, Part.PEER_LINK, Part.DISK, Part.AGENT, *SEVERAL_PROCESSES}
)
#: Faults that silence an agent. After its fence the server is given up, and the work continues elsewhere,
#: however long the fault lasts.
_SILENCE = {
    Part.AGENT: Kind.FREEZE,
    Part.CONTROL_LINK: Kind.CUT,
    Part.SERVER: Kind.FREEZE,
    Part.WATCHERS: Kind.FREEZE,
}


@dataclass(frozen=True)
class Charge:
    """Cost of losing one server, in seconds.

    ``fence_seconds``: until its work may continue elsewhere. ``lost_seconds``: work that is repeated.
    ``start_seconds``: start of the next generation.
    """

    fence_seconds: float
    lost_seconds: float
    start_seconds: float

    @property
    def seconds(self) -> float:
        return self.fence_seconds + self.lost_seconds + self.start_seconds


def stops_training(fault: Fault) -> bool:
    """Return whether a running job may have to restart because of the fault. Workers outlive a killed
    agent."""
    if fault.target.part is Part.AGENT and fault.kind is Kind.KILL:
        return False
    return fault.target.part in _STOP_TRAINING


def silences(fault: Fault) -> bool:
    """Return whether the control plane gets no reports of the server during the fault."""
    return _SILENCE.get(fault.target.part) is fault.kind


def silence_of(target: Target) -> Kind | None:
    """Return the kind of fault that silences the target's server; None if none does."""
    return _SILENCE.get(target.part)


def cost_seconds(fault: Fault, charge: Charge) -> float:
    """Return the longest time, in seconds, for which the fault keeps one job from training.

    A jump of the control plane's clock brings deadlines closer by the same amount; an agent's clock does not.
    """
    if fault.kind is Kind.JUMP:
        return 0.0 if fault.target.server else abs(fault.amount)
    away = max(fault.seconds, RESTART_SECONDS)
    if silences(fault):
        away = min(away, charge.fence_seconds)
    return away + charge.lost_seconds + charge.start_seconds if stops_training(fault) else away


def is_covered(faults: Sequence[Fault], reserve_servers: int, charge: Charge) -> bool:
    """Return whether a promise must be kept despite these faults.

    That is the case if at most ``reserve_servers`` servers were away for longer than their fence, and all
    faults together cost at most as much as losing that many servers. Without a reserve, only an empty list is
    covered.
    """
    fenced = {
        fault.target.server
        for fault in faults
        if stops_training(fault) and fault.seconds + RESTART_SECONDS >= charge.fence_seconds
    }
    return (
        len(fenced) <= reserve_servers
        and sum(cost_seconds(fault, charge) for fault in faults) <= reserve_servers * charge.seconds
    )
