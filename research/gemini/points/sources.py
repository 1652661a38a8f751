"""Sources from which each machine loads its state after a failure (Gemini).

Case 1: every state has a living holder, so survivors load their own and newcomers that of a peer. Case 2:
some state is lost from memory, so all machines load the last durable state, even with newer copies of their
own: a mixture of iterations is no state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from recovery.placement.strategies import Placement
from research.gemini.points.versions import KeptState, recoverable_version


class Tier(StrEnum):
    """Places to load a state from, best first."""

    LOCAL = "local memory"
    PEER = "a peer's memory"
    DURABLE = "durable storage"


@dataclass(frozen=True, slots=True)
class StateSource:
    """Source of one machine's state. ``holder``: the machine in whose memory it is; None for durable."""

    owner: int
    tier: Tier
    holder: int | None


@dataclass(frozen=True, slots=True)
class RecoverySources:
    """The version from which training continues, and each machine's source. ``version`` is None without any
    state: training begins anew."""

    version: int | None
    sources: tuple[StateSource, ...]

    @property
    def tier(self) -> Tier:
        """The worst tier that any machine loads from."""
        order = list(Tier)
        return max((one.tier for one in self.sources), key=order.index)


def choose_sources(
    placement: Placement, kept: Sequence[KeptState], lost: Collection[int], durable: int | None
) -> RecoverySources:
    """Return the newest version that all machines can load, and its sources.

    ``lost``: machines whose memory is lost. ``durable``: the newest durable version, None for none. A
    newcomer replaces a lost machine and loads from the holder that serves fewest others, then from the
    nearest in the order of replicas.
    """
    owners = placement.machines
    version = recoverable_version(kept, owners, lost)
    if version is None or (durable is not None and durable > version):
        return RecoverySources(
            durable, tuple(StateSource(owner, Tier.DURABLE, None) for owner in range(owners))
        )
    there = {(one.owner, one.holder) for one in kept if version in one.complete_versions()}
    serving: Counter[int] = Counter()
    found: list[StateSource] = []
    for owner in range(owners):
        if owner not in lost and (owner, owner) in there:
            found.append(StateSource(owner, Tier.LOCAL, owner))
            continue
        where = placement.holders[owner]
        able = [holder for holder in where if holder not in lost and (owner, holder) in there]
        # A holder outside the placement has a copy from before the last rescale, which serves as well.
        able = able or [holder for who, holder in sorted(there) if who == owner and holder not in lost]
        holder = min(able, key=lambda one: (serving[one], able.index(one)))
        serving[holder] += 1
        found.append(StateSource(owner, Tier.PEER, holder))
    return RecoverySources(version, tuple(found))


@dataclass(frozen=True, slots=True)
class MissingCopy:
    """A copy of an owner's state that its holder should have and lacks."""

    owner: int
    holder: int


def copies_to_restore(
    placement: Placement, kept: Sequence[KeptState], version: int, lost: Collection[int]
) -> tuple[MissingCopy, ...]:
    """Return the copies to send again in the background until a job is fully protected, by holder."""
    there = {
        (one.owner, one.holder)
        for one in kept
        if one.holder not in lost and version in one.complete_versions()
    }
    missing = [
        (holder, owner)
        for owner, where in enumerate(placement.holders)
        for holder in where
        if holder != owner and (owner, holder) not in there
    ]
    return tuple(MissingCopy(owner, holder) for holder, owner in sorted(missing))


def lost_if_gone(
    placement: Placement, kept: Sequence[KeptState], reached: int, durable: int | None
) -> tuple[int, ...]:
    """Return the iterations that would be lost if each machine failed now, by machine; ``reached`` is the
    job's present iteration."""
    return tuple(
        reached - (choose_sources(placement, kept, {machine}, durable).version or 0)
        for machine in range(placement.machines)
    )
