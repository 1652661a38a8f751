"""The cache of experts' states in host memory: least frequently used, with decay (MoESys, Algorithm 2).

The cache decides only. `decide` names the entries that leave, the owner of the files writes them, and `apply`
changes the cache. A failure between the two leaves the cache unchanged. The published listing has gaps, which
are closed thus: one entry leaves at a time, a new entry has the count 1, and ties are
decided by the last access.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from moe.moesys.checks import check_at_least, check_not_negative, check_positive, check_share

#: Counts are rescaled when one access exceeds this value in their units.
RESCALE_ABOVE = 1e12

#: Layer and expert.
Key = tuple[int, int]


class Rule(StrEnum):
    """How a victim is chosen.

    `cold`: the smallest count. `literal`: the smallest count if it reaches the threshold. `prose`: the
    smallest count that reaches the threshold; if there is none, the smallest count.
    """

    COLD = "cold"
    LITERAL = "literal"
    PROSE = "prose"


class Kind(StrEnum):
    """The outcome of an access: present, added to free room, added in place of others, or not cached."""

    HIT = "hit"
    FILL = "fill"
    REPLACE = "replace"
    BYPASS = "bypass"


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Parameters of a cache.

    Attributes:
        capacity: in the unit of entry sizes, such as bytes or entries (s_c).
        rule: how a victim is chosen.
        threshold: of the published rules (θ).
        attenuation: factor of all counts after each `period` accesses (β).
        period: accesses between two attenuations (K_s).
        strict_capacity: whether to leave room for one entry unused, as the published listing does.

    Raises:
        ValueError: capacity or threshold is negative, the period is below 1, or the attenuation is not in
            (0, 1].
    """

    capacity: int
    rule: Rule = Rule.COLD
    threshold: float = 1.0
    attenuation: float = 0.9
    period: int = 200
    strict_capacity: bool = False

    def __post_init__(self) -> None:
        check_at_least("capacity", self.capacity, 0)
        check_not_negative("threshold", self.threshold)
        check_share("attenuation", self.attenuation)
        check_positive("attenuation", self.attenuation)
        check_at_least("period", self.period)


@dataclass(frozen=True, slots=True)
class Access:
    """A decided access.

    Attributes:
        victims: entries that leave.
        write_back: the victims that differ from their files.
        is_ahead: whether the entry is fetched before it is known to be needed.
    """

    key: Key
    size: int
    kind: Kind
    victims: tuple[Key, ...] = ()
    write_back: tuple[Key, ...] = ()
    is_ahead: bool = False


@dataclass(slots=True)
class CacheCounts:
    """Totals since the cache was made. `accesses` is the sum of `hits` and `misses`.

    Attributes:
        fetched_ahead: entries that were read before they were known to be needed.
        write_backs: changed entries that were written when they left.
        flushes: changed entries that were written and stayed.
    """

    accesses: int = 0
    hits: int = 0
    misses: int = 0
    bypasses: int = 0
    fetched_ahead: int = 0
    write_backs: int = 0
    flushes: int = 0

    @property
    def reads(self) -> int:
        """Reads of files."""
        return self.misses + self.fetched_ahead


@dataclass(slots=True)
class _Entry:
    size: int
    scaled_count: float
    last: int
    is_dirty: bool = False
    pins: int = 0


class FrequencyCache:
    """Entries with their decayed access counts.

    Counts are stored in a unit that shrinks at each decay, so decay changes no stored count and a heap of
    them stays valid. Outdated elements of the heap are dropped when they reach its top.
    """

    def __init__(self, policy: CachePolicy) -> None:
        self.policy = policy
        self.counts = CacheCounts()
        self.used = 0
        self._entries: dict[Key, _Entry] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._scale = 1.0
        self._steps = self._clock = 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def frequency(self, key: Key) -> float:
        """Return the count of an entry; 0 if it is not cached."""
        entry = self._entries.get(key)
        return entry.scaled_count * self._scale if entry else 0.0

    def frequencies(self) -> dict[Key, float]:
        """Return the counts of all entries."""
        return {key: entry.scaled_count * self._scale for key, entry in self._entries.items()}

    # -- accesses

    def access(self, key: Key, size: int = 1) -> Access:
        """Decide an access and apply it."""
        decided = self.decide(key, size)
        self.apply(decided)
        return decided

    def decide(self, key: Key, size: int = 1, *, is_ahead: bool = False) -> Access:
        """Return the outcome of an access without changing the cache.

        Args:
            is_ahead: whether the entry is fetched before it is known to be needed. That does not count as a
                use.

        Raises:
            ValueError: the size is below 1.
        """
        check_at_least("size", size)
        if key in self._entries:
            return Access(key, size, Kind.HIT, is_ahead=is_ahead)
        capacity = self.policy.capacity - (size if self.policy.strict_capacity else 0)
        room = capacity - self.used
        if size <= room:
            return Access(key, size, Kind.FILL, is_ahead=is_ahead)
        victims = self._victims(size - room) if size <= capacity else None
        if victims is None:
            return Access(key, size, Kind.BYPASS, is_ahead=is_ahead)
        dirty = tuple(victim for victim in victims if self._entries[victim].is_dirty)
        return Access(key, size, Kind.REPLACE, tuple(victims), dirty, is_ahead)

    def apply(self, access: Access) -> None:
        """Apply a decided access.

        Raises:
            ValueError: the cache changed since the decision.
        """
        is_stale = any(victim not in self._entries or self._entries[victim].pins for victim in access.victims)
        if is_stale or (access.kind is Kind.HIT) != (access.key in self._entries):
            raise ValueError(
                f"the cache changed since the access of {access.key} was decided; decide it again"
            )
        for victim in access.victims:
            self.used -= self._entries.pop(victim).size
        self._count(access)
        if access.kind is not Kind.BYPASS:
            self._use(access)
        if not access.is_ahead:
            self._step()

    # -- entries that are cached

    def pin(self, key: Key) -> None:
        """Keep an entry until it is unpinned equally often. Do nothing for a key that is not cached."""
        if key in self._entries:
            self._entries[key].pins += 1

    def unpin(self, key: Key) -> None:
        """Undo one `pin`. Do nothing for a key that is not cached or not pinned."""
        if key in self._entries and self._entries[key].pins:
            self._entries[key].pins -= 1

    def mark_dirty(self, key: Key) -> None:
        """Note that an entry differs from its file.

        Raises:
            KeyError: the key is not cached. Such a state must be written at once.
        """
        self._entries[key].is_dirty = True

    def is_dirty(self, key: Key) -> bool:
        """Return whether an entry differs from its file."""
        return key in self._entries and self._entries[key].is_dirty

    def dirty_keys(self) -> tuple[Key, ...]:
        """Return the entries that differ from their files, in order."""
        return tuple(sorted(key for key, entry in self._entries.items() if entry.is_dirty))

    def mark_flushed(self, keys: Iterable[Key]) -> None:
        """Note that entries were written and stay.

        Raises:
            KeyError: a key is not cached.
        """
        for key in keys:
            self._entries[key].is_dirty = False
            self.counts.flushes += 1

    def forget(self, key: Key) -> None:
        """Remove an entry whose file could not be read.

        Raises:
            KeyError: the key is not cached.
        """
        self.used -= self._entries.pop(key).size

    # -- inside

    def _count(self, access: Access) -> None:
        is_hit = access.kind is Kind.HIT
        self.counts.write_backs += len(access.write_back)
        if access.is_ahead:
            self.counts.fetched_ahead += not is_hit
        else:
            self.counts.accesses += 1
            self.counts.hits += is_hit
            self.counts.misses += not is_hit
        self.counts.bypasses += access.kind is Kind.BYPASS

    def _use(self, access: Access) -> None:
        self._clock += 1
        entry = self._entries.get(access.key)
        if entry is None:
            entry = self._entries[access.key] = _Entry(access.size, 0.0, self._clock)
            self.used += access.size
        entry.last = self._clock
        if not access.is_ahead:
            entry.scaled_count += 1.0 / self._scale
        heapq.heappush(self._heap, (entry.scaled_count, entry.last, access.key))
        if len(self._heap) > 4 * len(self._entries) + 64:
            self._rebuild_heap()

    def _rebuild_heap(self) -> None:
        self._heap = [(entry.scaled_count, entry.last, key) for key, entry in self._entries.items()]
        heapq.heapify(self._heap)

    def _step(self) -> None:
        self._steps += 1
        if self._steps < self.policy.period:
            return
        self._steps = 0
        self._scale *= self.policy.attenuation
        if 1.0 / self._scale > RESCALE_ABOVE:
            for entry in self._entries.values():
                entry.scaled_count *= self._scale
            self._scale = 1.0
            self._rebuild_heap()

    def _victims(self, needed: int) -> list[Key] | None:
        """Return entries that free `needed`, in the order in which they leave; None if the rule yields too
        few."""
        found: list[Key] = []
        below: list[Key] = []
        popped: list[tuple[float, int, Key]] = []
        freed = 0
        rule, threshold = self.policy.rule, self.policy.threshold
        while self._heap and freed < needed:
            scaled_count, last, key = heapq.heappop(self._heap)
            entry = self._entries.get(key)
            if entry is None or (entry.scaled_count, entry.last) != (scaled_count, last):
                continue
            popped.append((scaled_count, last, key))
            if entry.pins:
                continue
            if rule is not Rule.COLD and scaled_count * self._scale < threshold:
                if rule is Rule.LITERAL:
                    break
                below.append(key)
                continue
            found.append(key)
            freed += entry.size
        for element in popped:
            heapq.heappush(self._heap, element)
        if rule is Rule.PROSE:
            while freed < needed and below:
                found.append(below.pop(0))
                freed += self._entries[found[-1]].size
        return found if freed >= needed else None
