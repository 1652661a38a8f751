"""Placement of replicas: the group, ring and mixed strategies (Gemini, Algorithm 6.1).

Machines are positions 0 to N - 1 of an ordered list. `recovery.placement.domains` orders the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Strategy(StrEnum):
    """How machines form groups that keep each other's state."""

    #: Groups of exactly ``replicas`` machines; each keeps the state of its whole group.
    GROUP = "group"
    #: One ring of all machines; each keeps the state of its predecessors.
    RING = "ring"
    #: Groups, and one ring of the last group and the machines left over.
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class PlacementGroup:
    """Machines that keep each other's state, in ring order.

    In a group of ``replicas`` members every member keeps the state of all; in a larger one, each keeps the
    state of its predecessors in the ring.
    """

    #: Indices of the machines.
    members: tuple[int, ...]
    replicas: int

    @property
    def ring(self) -> bool:
        """Whether the group has more members than replicas."""
        return len(self.members) > self.replicas

    def holders(self, place: int) -> tuple[int, ...]:
        """Return the machines with the state of the member at ``place``: itself, then its ring successors."""
        size = len(self.members)
        return tuple(self.members[(place + step) % size] for step in range(self.replicas))


@dataclass(frozen=True, slots=True)
class Placement:
    """Which machines keep whose state. ``holders[i]``: those that keep machine i's, itself first."""

    #: Number of copies of each state, including the machine's own.
    replicas: int
    strategy: Strategy
    groups: tuple[PlacementGroup, ...]
    #: For each machine, the machines that keep its state.
    holders: tuple[tuple[int, ...], ...]

    @property
    def machines(self) -> int:
        """Number of machines."""
        return len(self.holders)

    def replica_sets(self) -> frozenset[frozenset[int]]:
        """Return the distinct sets of machines that keep some machine's state. Losing a whole set loses
        that state."""
        return frozenset(frozenset(where) for where in self.holders)


def require_replicas(machines: int, replicas: int) -> None:
    """Raise ValueError unless ``replicas`` copies can lie on different machines."""
    if machines < 1:
        raise ValueError(f"a placement needs at least one machine, not {machines}")
    if replicas < 1:
        raise ValueError(f"replicas count the local one and are at least 1, not {replicas}")
    if replicas > machines:
        raise ValueError(f"{replicas} replicas need {replicas} machines; with {machines}, {machines} can be")


def place(machines: int, replicas: int, strategy: Strategy = Strategy.MIXED) -> Placement:
    """Divide ``machines`` into groups for ``replicas`` copies of each machine's state, including the local
    one.

    Raises ValueError for fewer machines than replicas, and for the group strategy if ``replicas`` does not
    divide ``machines``.
    """
    require_replicas(machines, replicas)
    everybody = tuple(range(machines))
    left_over = machines % replicas
    if strategy is Strategy.GROUP and left_over:
        raise ValueError(
            f"groups of {replicas} leave {left_over} of {machines} machines over; mixed takes them"
        )
    if strategy is Strategy.RING:
        return _placement(machines, replicas, strategy, [everybody])
    groups = [everybody[start : start + replicas] for start in range(0, machines - left_over, replicas)]
    if left_over:
        groups[-1] += everybody[machines - left_over :]
    # Without machines left over, the mixed strategy is the group strategy.
    used = Strategy.MIXED if left_over else Strategy.GROUP
    return _placement(machines, replicas, used, groups)


def _placement(machines: int, replicas: int, strategy: Strategy, members: list[tuple[int, ...]]) -> Placement:
    groups = tuple(PlacementGroup(each, replicas) for each in members)
    holders: list[tuple[int, ...]] = [()] * machines
    for group in groups:
        for at, machine in enumerate(group.members):
            holders[machine] = group.holders(at)
    return Placement(replicas, strategy, groups, tuple(holders))
