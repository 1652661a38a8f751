"""The contents of a store and their rules: two slots for each owner, generations, a limit in bytes.

Bookkeeping only: no socket, no clock, no process. An owner is one rank of one generation of one job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from recovery.store.memory import Checksums, Region

SLOTS = 2


class RefusedError(Exception):
    """A request is refused; the message says why."""


@dataclass(frozen=True, order=True)
class Owner:
    """The owner of shards."""

    job: str
    generation: int
    rank: int


@dataclass(frozen=True)
class Version:
    """A complete shard: the state after `iteration`. Its first bytes are its description."""

    iteration: int
    #: Size of the shard, including its description.
    bytes: int
    description_bytes: int
    checksums: Checksums
    completed_at: float


@dataclass
class Slot:
    """Room for one version of a shard.

    Attributes:
        version: its complete version, if any. checking: iteration of a written version whose checksums are
            being computed.
    """

    #: Its memory; None before it is allocated.
    region: Region | None = None
    version: Version | None = None
    checking: int | None = None

    @property
    def capacity(self) -> int:
        """Size in bytes."""
        return 0 if self.region is None else self.region.size


@dataclass
class Holding:
    """All versions held for one owner."""

    world_size: int
    slots: list[Slot] = field(default_factory=lambda: [Slot() for _ in range(SLOTS)])
    #: Newest version that every rank is known to have.
    committed: int | None = None
    #: A later generation has begun to read, so nothing may be written.
    frozen: bool = False

    @property
    def bytes(self) -> int:
        """Memory in use."""
        return sum(slot.capacity for slot in self.slots)

    def versions(self) -> list[Version]:
        """Return the complete versions, newest first."""
        found = [slot.version for slot in self.slots if slot.version is not None]
        return sorted(found, key=lambda version: version.iteration, reverse=True)

    def oldest(self) -> int:
        """Return the slot to overwrite next: one without a complete version, else the older version, and the
        committed one last."""

        def age(place: int) -> tuple[bool, int]:
            version = self.slots[place].version
            iteration = -1 if version is None else version.iteration
            return self.committed is not None and iteration == self.committed, iteration

        return min(range(SLOTS), key=age)

    def slot_of(self, iteration: int) -> Slot | None:
        """Return the slot with the complete version of that iteration."""
        return next(
            (s for s in self.slots if s.version is not None and s.version.iteration == iteration), None
        )


class Holdings:
    """Everything in a store's memory."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        #: Jobs whose state is also durable: their memory is given up when other jobs need it.
        self.spare: frozenset[str] = frozenset()
        self._holdings: dict[Owner, Holding] = {}

    def __iter__(self) -> Iterator[tuple[Owner, Holding]]:
        return iter(sorted(self._holdings.items()))

    @property
    def used_bytes(self) -> int:
        """Memory in use by all owners."""
        return sum(holding.bytes for holding in self._holdings.values())

    def get(self, owner: Owner) -> Holding | None:
        """Return an owner's holding."""
        return self._holdings.get(owner)

    def reserve(
        self, owner: Owner, world_size: int, size: int, committed: int | None, most_bytes: int
    ) -> list[Slot]:
        """Make room for `size` bytes in each slot without the committed version; return both slots.

        Args:
            most_bytes: limit of this owner's total.

        Raises:
            RefusedError: there is not enough memory.
        """
        holding = self._holdings.setdefault(owner, Holding(world_size))
        self._commit(owner, holding, committed)
        growing = [
            slot
            for slot in holding.slots
            if slot.capacity < size and not self._is_committed(holding, slot) and slot.checking is None
        ]
        kept = sum(slot.capacity for slot in holding.slots if slot not in growing)
        wanted = kept + size * len(growing)
        if wanted > most_bytes:
            raise RefusedError(f"{wanted} bytes in memory where one worker may have {most_bytes}")
        if self.used_bytes - holding.bytes + wanted > self.limit_bytes:
            self._make_room(owner)
            self._give_up_spare(owner.job, wanted - holding.bytes)
        left = self.limit_bytes - (self.used_bytes - holding.bytes)
        if wanted > left:
            raise RefusedError(
                f"{wanted} bytes in memory where {max(0, left)} of {self.limit_bytes} are left"
            )
        for slot in growing:
            _clear(slot)
            try:
                slot.region = Region(size)
            except OSError as error:
                raise RefusedError(f"the server has no {size} bytes of memory: {error.strerror}") from error
        return holding.slots

    def give_back(self, owner: Owner, regions: Collection[Region]) -> None:
        """Release these regions, because their memory could not be allocated."""
        holding = self._holdings.get(owner)
        for slot in [] if holding is None else holding.slots:
            if slot.region in regions:
                _clear(slot)
        self._forget_if_empty(owner)

    def begin(self, owner: Owner, place: int, committed: int | None) -> None:
        """Invalidate a slot's content before it is overwritten.

        Raises:
            RefusedError: the slot holds the committed version, or the owner may not write any more.
        """
        holding = self._writable(owner)
        self._commit(owner, holding, committed)
        slot = holding.slots[place]
        if self._is_committed(holding, slot):
            raise RefusedError(f"slot {place} holds the committed version {holding.committed}")
        if slot.region is None or slot.checking is not None:
            raise RefusedError(f"slot {place} cannot be written now")
        slot.version = None

    def end(self, owner: Owner, place: int, iteration: int, size: int, description_bytes: int) -> Region:
        """Mark a slot as written; return its memory, whose checksums are to be computed.

        Raises:
            RefusedError: it was not begun, or the sizes do not fit.
        """
        slot = self._writable(owner).slots[place]
        if slot.region is None or slot.version is not None or slot.checking is not None:
            raise RefusedError(f"slot {place} was not begun")
        if not 0 <= description_bytes <= size <= slot.capacity:
            raise RefusedError(f"{size} bytes in a slot of {slot.capacity}")
        slot.checking = iteration
        return slot.region

    def checked(self, owner: Owner, place: int, version: Version) -> bool:
        """Complete a written version with its checksums. Return False if its slot no longer waits for
        them."""
        holding = self._holdings.get(owner)
        if holding is None or holding.slots[place].checking != version.iteration:
            return False
        holding.slots[place].checking = None
        holding.slots[place].version = version
        return True

    def unreadable(self, owner: Owner, place: int) -> None:
        """Reset a slot whose content could not be read."""
        holding = self._holdings.get(owner)
        if holding is not None:
            holding.slots[place].checking = None

    def begin_copy(
        self, owner: Owner, world_size: int, capacity: int, committed: int | None
    ) -> tuple[int, Region]:
        """Make room for the next version of another server's shard; return the slot's number and memory.

        An incomplete slot is overwritten first, then the older version; the committed version stays.

        Raises:
            RefusedError: there is no room, or a later generation has begun to read.
        """
        holding = self._holdings.get(owner)
        if holding is not None and holding.frozen:
            raise RefusedError("a later generation has taken over")
        try:
            slots = self.reserve(owner, world_size, capacity, committed, SLOTS * self.limit_bytes)
        finally:
            self._forget_if_empty(owner)
        holding = self._holdings[owner]
        place = holding.oldest()
        self.begin(owner, place, committed)
        region = slots[place].region
        assert region is not None
        return place, region

    def end_copy(self, owner: Owner, place: int, region: Region, version: Version) -> None:
        """Complete a copy.

        Raises:
            RefusedError: its slot was released meanwhile.
        """
        holding = self._holdings.get(owner)
        if holding is None or holding.slots[place].region is not region:
            raise RefusedError("nobody wants it any more")
        self.end(owner, place, version.iteration, version.bytes, version.description_bytes)
        self.checked(owner, place, version)

    def begin_fetch(self, owner: Owner, world_size: int, size: int) -> tuple[int, Region]:
        """Make room for one version of an earlier generation's shard that is fetched from a peer.

        Raises:
            RefusedError: there is no room.
        """
        self._give_up_spare(owner.job, size)
        if self.used_bytes + size > self.limit_bytes:
            left = self.limit_bytes - self.used_bytes
            raise RefusedError(f"{size} bytes in memory where {left} of {self.limit_bytes} are left")
        holding = self._holdings.setdefault(owner, Holding(world_size, frozen=True))
        place = holding.oldest()
        slot = holding.slots[place]
        _clear(slot)
        try:
            slot.region = Region(size)
        except OSError as error:
            self._forget_if_empty(owner)
            raise RefusedError(f"the server has no {size} bytes of memory: {error.strerror}") from error
        return place, slot.region

    def end_fetch(self, owner: Owner, place: int, region: Region, version: Version | None) -> None:
        """Complete a fetch; with None it has failed, and its room is released.

        Raises:
            RefusedError: its slot was released meanwhile.
        """
        holding = self._holdings.get(owner)
        if holding is None or holding.slots[place].region is not region:
            raise RefusedError("nobody wants it any more")
        if version is None:
            _clear(holding.slots[place])
            self._forget_if_empty(owner)
        else:
            holding.slots[place].version = version

    def _forget_if_empty(self, owner: Owner) -> None:
        holding = self._holdings.get(owner)
        if holding is not None and not holding.bytes:
            del self._holdings[owner]

    def freeze(self, job: str, generation: int) -> None:
        """Freeze a generation and all earlier ones, because a later generation reads them."""
        for owner, holding in self._holdings.items():
            if owner.job == job and owner.generation <= generation:
                holding.frozen = True

    def drop(self, owner: Owner, iteration: int) -> None:
        """Forget a version whose content no longer matches its checksums."""
        holding = self._holdings.get(owner)
        slot = None if holding is None else holding.slot_of(iteration)
        if slot is not None:
            slot.version = None

    def forget_all_but(self, jobs: Collection[str]) -> None:
        """Forget every job that is not listed."""
        for owner in [owner for owner in self._holdings if owner.job not in jobs]:
            self._forget(owner)

    def _writable(self, owner: Owner) -> Holding:
        holding = self._holdings.get(owner)
        if holding is None:
            raise RefusedError("nothing was reserved")
        if holding.frozen:
            raise RefusedError("a later generation has taken over")
        return holding

    @staticmethod
    def _is_committed(holding: Holding, slot: Slot) -> bool:
        found = slot.version
        return found is not None and holding.committed is not None and found.iteration == holding.committed

    def _commit(self, owner: Owner, holding: Holding, committed: int | None) -> None:
        """Record a version that every rank has, and forget the shards of earlier generations."""
        if committed is None or holding.slot_of(committed) is None:
            return
        if holding.committed is not None and committed <= holding.committed:
            return
        holding.committed = committed
        older = [o for o in self._holdings if o.job == owner.job and o.generation < owner.generation]
        for one in older:
            self._forget(one)

    def _make_room(self, owner: Owner) -> None:
        """Keep only the newest version of earlier generations of the same job."""
        for other, holding in self._holdings.items():
            if other.job != owner.job or other.generation >= owner.generation:
                continue
            newest = holding.versions()[:1]
            for slot in holding.slots:
                if slot.checking is None and (slot.version is None or slot.version not in newest):
                    _clear(slot)

    def _give_up_spare(self, job: str, size: int) -> None:
        """Forget spare jobs other than `job` until `size` more bytes fit."""
        for owner in sorted(self._holdings):
            if self.used_bytes + size <= self.limit_bytes:
                return
            if owner.job in self.spare and owner.job != job:
                self._forget(owner)

    def _forget(self, owner: Owner) -> None:
        for slot in self._holdings.pop(owner).slots:
            _clear(slot)


def _clear(slot: Slot) -> None:
    if slot.region is not None:
        slot.region.close()
    slot.region = slot.version = slot.checking = None
