"""Versions of a job's state in the slots of its machines (Gemini).

Version v is the state after iteration v. Each machine has two slots for each state that it keeps: one for the
last complete version and one for the version being received.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from recovery.placement.strategies import Placement


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot. ``version``: its content, None for empty. ``complete``: whether all of it has arrived with
    the right digest."""

    version: int | None = None
    complete: bool = False


@dataclass(frozen=True, slots=True)
class KeptState:
    """One machine's copies of one owner's state. An owner is a machine of the job, by position."""

    owner: int
    holder: int
    slots: tuple[Slot, Slot] = (Slot(), Slot())

    def complete_versions(self) -> frozenset[int]:
        """Return the versions that are complete."""
        return frozenset(slot.version for slot in self.slots if slot.complete and slot.version is not None)


def recoverable_version(kept: Iterable[KeptState], owners: int, lost: Collection[int] = ()) -> int | None:
    """Return the newest version of which every owner's state is complete on a machine that is not lost, or
    None."""
    found: list[set[int]] = [set() for _ in range(owners)]
    for one in kept:
        if one.holder not in lost:
            found[one.owner] |= one.complete_versions()
    common = set.intersection(*found) if found else set()
    return max(common, default=None)


def protected_groups(
    placement: Placement, kept: Sequence[KeptState], version: int, lost: Collection[int] = ()
) -> tuple[str, ...]:
    """Return ``full``, ``degraded`` or ``none`` for each group: whether each member's state of ``version`` is
    on all of its machines, on some, or some member's is nowhere."""
    alive = {
        (one.owner, one.holder)
        for one in kept
        if one.holder not in lost and version in one.complete_versions()
    }

    def state(members: Sequence[int]) -> str:
        copies = [sum((owner, holder) in alive for holder in placement.holders[owner]) for owner in members]
        return "none" if min(copies) == 0 else "full" if min(copies) == placement.replicas else "degraded"

    return tuple(state(group.members) for group in placement.groups)
