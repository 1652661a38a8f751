"""Protection of a job on given machines: its placement within their free host memory.

A machine reserves two slots for each shard that it keeps: the complete version and the one being received.
That is 2 * m * C on each machine for m replicas of shards of C bytes. Memory is never overcommitted: where it
is short, fewer replicas or none are granted, with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recovery.placement.domains import FailureDomains, fatal_domains, order_by_domains
from recovery.placement.strategies import Placement, PlacementGroup, Strategy, place

#: Slots for each shard that a machine keeps.
SLOTS = 2
GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of a job: its memory and its failure domains.

    ``free_memory_bytes``: host memory that nothing else claims. ``shard_bytes``: the state of its workers.
    """

    id: str
    free_memory_bytes: int
    shard_bytes: int
    domains: FailureDomains = FailureDomains()


@dataclass(frozen=True, slots=True)
class Protection:
    """The protection granted to a job. ``placement`` is over positions of the machines as given.

    ``wanted``: replicas asked for. ``replicas``: copies of each machine's state, including the local one; 0
    when not even that fits. ``memory_bytes``: reservation of each machine. ``reason``: why fewer were granted
    than asked for; empty otherwise. ``fatal_domains``: racks and power domains whose loss still loses a
    state.
    """

    wanted: int
    replicas: int
    placement: Placement | None
    memory_bytes: tuple[int, ...]
    reason: str = ""
    fatal_domains: tuple[str, ...] = ()


def protect(machines: Sequence[Machine], replicas: int) -> Protection:
    """Grant as many replicas, up to ``replicas``, as the machines have memory for, spread over failure
    domains.

    Raises ValueError without machines, and for ``replicas`` below 1.
    """
    if replicas < 1:
        raise ValueError(f"replicas count the local one and are at least 1, not {replicas}")
    if not machines:
        raise ValueError("a placement needs at least one machine, not 0")
    reasons = []
    if replicas > len(machines):
        there = "one machine" if len(machines) == 1 else f"{len(machines)} machines"
        reasons.append(f"{replicas} replicas need {replicas} machines, and the job runs on {there}")
    for count in range(min(replicas, len(machines)), 0, -1):
        placement = placed_on(machines, count)
        needed = memory_needed(placement, [machine.shard_bytes for machine in machines])
        short = _shortest(machines, needed)
        if short is None:
            return Protection(
                replicas, count, placement, needed, _granted(reasons, replicas, count),
                fatal_domains([machine.domains for machine in machines], placement) if count > 1 else (),
            )  # fmt: skip
        reasons.append(_shortage(machines[short], needed[short], count))
    text = f"{reasons[-1]}: nothing is kept in memory, and every failure goes back to the last durable state"
    return Protection(replicas, 0, None, (0,) * len(machines), text)


def placed_on(machines: Sequence[Machine], replicas: int) -> Placement:
    """Return the mixed placement over these machines, ordered by their failure domains."""
    order = order_by_domains([machine.domains for machine in machines], replicas)
    ordered = place(len(machines), replicas, Strategy.MIXED)
    holders: list[tuple[int, ...]] = [()] * len(machines)
    for position, where in enumerate(ordered.holders):
        holders[order[position]] = tuple(order[at] for at in where)
    groups = tuple(
        PlacementGroup(tuple(order[at] for at in group.members), replicas) for group in ordered.groups
    )
    return Placement(replicas, ordered.strategy, groups, tuple(holders))


def memory_needed(placement: Placement, shard_bytes: Sequence[int]) -> tuple[int, ...]:
    """Return the bytes that each machine reserves: two slots for each shard that it keeps."""
    needed = [0] * placement.machines
    for owner, where in enumerate(placement.holders):
        for machine in where:
            needed[machine] += SLOTS * shard_bytes[owner]
    return tuple(needed)


def _shortest(machines: Sequence[Machine], needed: Sequence[int]) -> int | None:
    """Return the machine with the largest shortage; None when all have enough."""
    lacking = [wanted - machine.free_memory_bytes for machine, wanted in zip(machines, needed, strict=True)]
    worst = max(range(len(machines)), key=lambda at: lacking[at])
    return worst if lacking[worst] > 0 else None


def _shortage(machine: Machine, needed: int, replicas: int) -> str:
    copies = "one replica needs" if replicas == 1 else f"{replicas} replicas need"
    return (
        f"{machine.id} has {machine.free_memory_bytes / GIGABYTE:.1f} GB of host memory free, "
        f"and {copies} {needed / GIGABYTE:.1f} GB there"
    )


def _granted(reasons: Sequence[str], wanted: int, granted: int) -> str:
    if granted == wanted:
        return ""
    what = (
        "one replica is kept, which covers failures of processes and not of machines"
        if granted == 1
        else f"{granted} replicas are kept"
    )
    return f"{reasons[-1]}: {what}"
