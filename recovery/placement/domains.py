"""Order of machines by failure domain, so that a group's members fail independently (an extension
of Gemini).

A failure domain is a rack or a power domain: all of its machines fail with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from recovery.placement.strategies import Placement, Strategy, place

#: Bound on the exchanges tried, so that ordering a thousand machines stays fast.
MOST_EXCHANGES_TRIED = 20_000


class Domain(NamedTuple):
    """One named failure domain. ``kind``: ``rack`` or ``power``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class FailureDomains:
    """The failure domains of one machine. An empty name means a domain of its own."""

    rack: str = ""
    power: str = ""

    def named(self) -> tuple[Domain, ...]:
        """Return the domains that have a name."""
        return tuple(one for one in (Domain("rack", self.rack), Domain("power", self.power)) if one.name)


def shared_domains(domains: Sequence[FailureDomains], machines: Sequence[int]) -> tuple[Domain, ...]:
    """Return the failure domains that contain all of these machines."""
    first, *others = (domains[machine].named() for machine in machines)
    return tuple(one for one in first if all(one in named for named in others))


def fatal_domains(domains: Sequence[FailureDomains], placement: Placement) -> tuple[str, ...]:
    """Return the names of failure domains whose loss loses some machine's state, sorted."""
    found = {str(one) for held in placement.replica_sets() for one in shared_domains(domains, sorted(held))}
    return tuple(sorted(found))


def order_by_domains(
    domains: Sequence[FailureDomains], replicas: int, strategy: Strategy = Strategy.MIXED
) -> tuple[int, ...]:
    """Return the order in which machines are placed: position p of the placement is machine ``order[p]``.

    Machines are dealt rack by rack, largest first, one to each group in turn. Then pairs are exchanged while
    that leaves fewer replica sets within one domain, or fewer pairs of a set in a common domain.
    Deterministic. With one kind of domain and a plain group strategy, no set shares a domain unnecessarily.
    Raises ValueError for more replicas than machines.
    """
    placement = place(len(domains), replicas, strategy)
    if replicas == 1:
        return tuple(range(len(domains)))
    order = _dealt(domains, placement)
    _exchange(order, domains, placement)
    return tuple(order)


def _dealt(domains: Sequence[FailureDomains], placement: Placement) -> list[int]:
    """Return the machines in rack order, dealt to the groups in turn."""
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
    """Exchange machines while that leaves fewer replicas in a common domain; bounded by
    `MOST_EXCHANGES_TRIED`."""
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
    """Return the number of domains with all of these machines, and of pairs of them that share a domain."""
    counts = Counter(one for machine in machines for one in domains[machine].named())
    whole = sum(count == len(machines) for count in counts.values())
    return whole, sum(count * (count - 1) // 2 for count in counts.values())
