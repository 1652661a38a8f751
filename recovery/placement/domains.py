"""Order of machines by failure domains, so that a group's members fail apart (Gemini, section 7 of its
specification).

A failure domain is what takes all of its machines along when it fails: a rack, a power domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from recovery.placement.strategies import Placement, Strategy, place

#: Bound on the exchanges that are tried, so that the order of a thousand machines takes a moment.
MOST_EXCHANGES_TRIED = 20_000


class Domain(NamedTuple):
    """One failure domain with a name. ``kind``: ``rack`` or ``power``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class FailureDomains:
    """The failure domains of one machine. An empty name stands for a domain of its own."""

    rack: str = ""
    power: str = ""

    def named(self) -> tuple[Domain, ...]:
        """The domains that have a name."""
        return tuple(one for one in (Domain("rack", self.rack), Domain("power", self.power)) if one.name)


def shared_domains(domains: Sequence[FailureDomains], machines: Sequence[int]) -> tuple[Domain, ...]:
    """Failure domains in which all of these machines lie."""
    first, *others = (domains[machine].named() for machine in machines)
    return tuple(one for one in first if all(one in named for named in others))


def fatal_domains(domains: Sequence[FailureDomains], placement: Placement) -> tuple[str, ...]:
    """Failure domains whose loss loses somebody's state, in order of their names."""
    found = {str(one) for held in placement.replica_sets() for one in shared_domains(domains, sorted(held))}
    return tuple(sorted(found))


def order_by_domains(
    domains: Sequence[FailureDomains], replicas: int, strategy: Strategy = Strategy.MIXED
) -> tuple[int, ...]:
    """Machines in the order in which they are to be placed: position p of the placement is machine
    ``order[p]``.

    Machines are dealt rack by rack, largest first, one to each group in turn; then machines are exchanged as
    long as that leaves fewer replica sets within one domain, or fewer pairs of a set in a common domain.
    Deterministic. With one kind of domain and a plain group strategy no set shares a domain that need not.
    Raises ValueError for more replicas than machines.
    """
    placement = place(len(domains), replicas, strategy)
    if replicas == 1:
        return tuple(range(len(domains)))
    order = _dealt(domains, placement)
    _exchange(order, domains, placement)
    return tuple(order)


def _dealt(domains: Sequence[FailureDomains], placement: Placement) -> list[int]:
    """Machines of one rack, then of the next, each to another group than the one before it."""
    racks = Counter(one.rack or f"alone {machine}" for machine, one in enumerate(domains))
    powers = Counter(one.power for one in domains)

    def place_in_row(machine: int) -> tuple[object, ...]:
        one = domains[machine]
        rack = one.rack or f"alone {machine}"
        return -racks[rack], rack, -powers[one.power], one.power, machine

    in_row = sorted(range(len(domains)), key=place_in_row)
    longest = max(len(group.members) for group in placement.groups)
    positions = [
        group.members[at] for at in range(longest) for group in placement.groups if at < len(group.members)
    ]
    order = [0] * len(domains)
    for position, machine in zip(positions, in_row, strict=True):
        order[position] = machine
    return order


def _exchange(order: list[int], domains: Sequence[FailureDomains], placement: Placement) -> None:
    """Exchange machines while that leaves fewer replicas in a common domain; bounded by the exchanges
    tried."""
    touching = [
        tuple(owner for owner, where in enumerate(placement.holders) if position in where)
        for position in range(placement.machines)
    ]

    def trouble(*positions: int) -> tuple[int, int]:
        owners = {owner for position in positions for owner in touching[position]}
        each = [_shared(domains, [order[at] for at in placement.holders[owner]]) for owner in owners]
        return sum(whole for whole, _ in each), sum(pairs for _, pairs in each)

    tried, better = 0, True
    while better and tried < MOST_EXCHANGES_TRIED:
        better = False
        for position in range(placement.machines):
            if trouble(position) == (0, 0):
                continue
            for other in range(placement.machines):
                if domains[order[position]] == domains[order[other]]:
                    continue
                tried += 1
                before = trouble(position, other)
                order[position], order[other] = order[other], order[position]
                if trouble(position, other) < before:
                    better = True
                    break
                order[position], order[other] = order[other], order[position]


def _shared(domains: Sequence[FailureDomains], machines: Sequence[int]) -> tuple[int, int]:
    """How many domains hold all of these machines, and how many pairs of them share one."""
    counts = Counter(one for machine in machines for one in domains[machine].named())
    whole = sum(count == len(machines) for count in counts.values())
    return whole, sum(count * (count - 1) // 2 for count in counts.values())
