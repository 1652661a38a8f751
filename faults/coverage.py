"""Which faults the failure reserve covers: pure.

A promise under a reserve of k servers has slack for k times what one lost server costs (fence, lost work, a
start), on the capacity that is left without any k of them. Whatever else takes time takes it from that slack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from faults.schedule import SEVERAL_PROCESSES, Fault, Kind, Part, Target

#: What a process that is killed is away for, until its supervisor has started it again.
RESTART_SECONDS = 5.0
#: Parts whose loss ends a generation, or keeps it waiting.
_STOP_TRAINING = frozenset(
    {Part.WORKER, Part.LAUNCHER, Part.CONTROL_LINK, Part.PEER_LINK, Part.DISK, Part.AGENT, *SEVERAL_PROCESSES}
)
#: By which an agent falls silent. After its fence the server is given up, and the work goes on
#: elsewhere, however much longer the fault lasts.
_SILENCE = {
    Part.AGENT: Kind.FREEZE,
    Part.CONTROL_LINK: Kind.CUT,
    Part.SERVER: Kind.FREEZE,
    Part.WATCHERS: Kind.FREEZE,
}


@dataclass(frozen=True)
class Charge:
    """What the loss of one server is charged with, in seconds: until its work may go on elsewhere, the work
    that is done again, and a start."""

    fence_seconds: float
    lost_seconds: float
    start_seconds: float

    @property
    def seconds(self) -> float:
        return self.fence_seconds + self.lost_seconds + self.start_seconds


def stops_training(fault: Fault) -> bool:
    """Whether a job that trains may have to start again for it. Workers outlive a killed agent."""
    if fault.target.part is Part.AGENT and fault.kind is Kind.KILL:
        return False
    return fault.target.part in _STOP_TRAINING


def silences(fault: Fault) -> bool:
    """Whether the control plane hears nothing of the server while it lasts."""
    return _SILENCE.get(fault.target.part) is fault.kind


def silence_of(target: Target) -> Kind | None:
    """The kind of fault that silences the server of that target; None where none does."""
    return _SILENCE.get(target.part)


def cost_seconds(fault: Fault, charge: Charge) -> float:
    """The most that it keeps one job from its work. A clock of the control plane that jumps brings deadlines
    nearer by as much; an agent's does not matter to them."""
    if fault.kind is Kind.JUMP:
        return 0.0 if fault.target.server else abs(fault.amount)
    away = max(fault.seconds, RESTART_SECONDS)
    if silences(fault):
        away = min(away, charge.fence_seconds)
    return away + charge.lost_seconds + charge.start_seconds if stops_training(fault) else away


def is_covered(faults: Sequence[Fault], reserve_servers: int, charge: Charge) -> bool:
    """Whether a promise has to be kept that lived through all of these.

    So it is while no more than ``reserve_servers`` servers were away for longer than their fence, and all
    together cost no more than the loss of as many servers does. Without a reserve nothing is covered but
    nothing.
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
