"""A cache of expert states in host memory in front of files, with the policy of `moe.moesys.cache`."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from moe.moesys.cache import Access, CachePolicy, FrequencyCache, Key, Kind
from workers.runtime.tiers.files import ExpertFiles


@dataclass(slots=True)
class HostState:
    """An expert's state in host memory. Set `is_dirty` after changing `values`."""

    key: Key
    values: Tensor
    is_cached: bool
    is_dirty: bool = False


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Totals since the beginning.

    Attributes:
        accesses, hits, misses: accesses to states, found in host memory or not.
        fetched_ahead: states read before they were needed.
        bypasses: states without room in host memory.
        write_backs: changed states written because they left host memory.
        flushes: changed states written that stayed.
        bytes_read, bytes_written: file traffic.
    """

    accesses: int = 0
    hits: int = 0
    misses: int = 0
    fetched_ahead: int = 0
    bypasses: int = 0
    write_backs: int = 0
    flushes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def since(self, earlier: TierCounts) -> TierCounts:
        """Return the difference to earlier totals."""
        return TierCounts(
            *(getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self))
        )


class HostCache:
    """States of experts for several threads.

    A changed state is written before its memory is used again. If a write fails, the state stays in memory,
    so no change is lost. Files are read and written without the lock.
    """

    def __init__(self, files: ExpertFiles, entries: int) -> None:
        """Keep at most `entries` states in host memory."""
        self.files = files
        self._cache = FrequencyCache(CachePolicy(entries))
        self._values: dict[Key, Tensor] = {}
        #: Changed states that left the cache and are not written yet.
        self._leaving: dict[Key, Tensor] = {}
        #: States that are being read or written, and uncached states in use.
        self._moving: set[Key] = set()
        #: States that were fetched ahead and not used yet. They are pinned.
        self._ahead: set[Key] = set()
        self._free: list[Tensor] = []
        self._changed = threading.Condition()
        self._written_uncached = 0

    def counts(self) -> TierCounts:
        """Return the totals."""
        counts = self._cache.counts
        return TierCounts(
            counts.accesses,
            counts.hits,
            counts.misses,
            counts.fetched_ahead,
            counts.bypasses,
            counts.write_backs + self._written_uncached,
            counts.flushes,
            self.files.bytes_read,
            self.files.bytes_written,
        )

    def frequency(self, key: Key) -> float:
        """Return the decayed number of uses; 0 if the state is not in memory."""
        with self._changed:
            return self._cache.frequency(key)

    @contextmanager
    def state(self, key: Key) -> Iterator[HostState]:
        """Hold a state in host memory.

        Raises:
            WorkerFailureError: a file cannot be read or written.
        """
        held = self._acquire(key, is_ahead=False)
        assert held is not None
        try:
            yield held
        finally:
            self._release(held)

    def fetch_ahead(self, key: Key) -> bool:
        """Read a state before it is needed, and keep it until it is used or `drop_ahead` is called.

        Returns:
            False if there is no room for it.
        """
        return self._acquire(key, is_ahead=True) is not None

    def drop_ahead(self, keys: Collection[Key]) -> int:
        """Unpin states that were fetched ahead and not used; return their number."""
        with self._changed:
            unused = self._ahead.intersection(keys)
            self._ahead -= unused
            for key in unused:
                self._cache.unpin(key)
            return len(unused)

    def flush(self) -> None:
        """Write all changed states, in the order of keys. They stay in memory."""
        with self._changed:
            leaving, dirty = dict(self._leaving), self._cache.dirty_keys()
        for key, values in sorted(leaving.items()):
            self._write_leaving(key, values)
        for key in dirty:
            with self._changed:
                if not self._cache.is_dirty(key):
                    continue
                self._cache.pin(key)
            try:
                self.files.write(key, self._values[key])
                with self._changed:
                    self._cache.mark_flushed([key])
            finally:
                with self._changed:
                    self._cache.unpin(key)

    def _release(self, held: HostState) -> None:
        with self._changed:
            if held.is_cached:
                if held.is_dirty:
                    self._cache.mark_dirty(held.key)
                self._cache.unpin(held.key)
                return
            self._leaving[held.key] = held.values
        if held.is_dirty:
            self._write_leaving(held.key, held.values)
            self._written_uncached += 1
            return
        with self._changed:
            self._free.append(self._leaving.pop(held.key))
            self._moving.discard(held.key)
            self._changed.notify_all()

    def _acquire(self, key: Key, *, is_ahead: bool) -> HostState | None:
        with self._changed:
            self._changed.wait_for(lambda: key not in self._moving)
            if is_ahead and key in self._ahead:
                return HostState(key, self._values[key], is_cached=True)
            access = self._cache.decide(key, is_ahead=is_ahead)
            if is_ahead and access.kind is Kind.BYPASS:
                return None
            leaving = self._take_victims(access)
            self._cache.apply(access)
            self._pin(key, is_ahead=is_ahead)
            is_cached = access.kind is not Kind.BYPASS
            if access.kind is Kind.HIT:
                return HostState(key, self._values[key], is_cached)
            self._moving.add(key)
            returned = self._leaving.pop(key, None)
        try:
            for victim, victim_values in leaving.items():
                self._write_leaving(victim, victim_values)
            if returned is None:
                values = self._take_memory()
                self.files.read(key, values)
            else:
                values = returned
        except BaseException:
            self._undo(key, returned, leaving)
            raise
        with self._changed:
            if is_cached:
                self._values[key] = values
                self._moving.discard(key)
                if returned is not None:
                    self._cache.mark_dirty(key)
                self._changed.notify_all()
        return HostState(key, values, is_cached, is_dirty=returned is not None)

    def _pin(self, key: Key, *, is_ahead: bool) -> None:
        """Pin a state for its user. A state that was fetched ahead is already pinned."""
        if is_ahead:
            self._ahead.add(key)
            self._cache.pin(key)
        elif key in self._ahead:
            self._ahead.discard(key)
        else:
            self._cache.pin(key)

    def _take_victims(self, access: Access) -> dict[Key, Tensor]:
        """Take victims out of memory; return those that must be written."""
        victims = {victim: self._values.pop(victim) for victim in access.victims}
        for victim, values in victims.items():
            if victim in access.write_back:
                self._leaving[victim] = values
                self._moving.add(victim)
            else:
                self._free.append(values)
        return {victim: victims[victim] for victim in access.write_back}

    def _write_leaving(self, key: Key, values: Tensor) -> None:
        """Write a state that left the cache. If that fails, it can still be acquired."""
        try:
            self.files.write(key, values)
            with self._changed:
                self._leaving.pop(key, None)
                self._free.append(values)
        finally:
            with self._changed:
                self._moving.discard(key)
                self._changed.notify_all()

    def _take_memory(self) -> Tensor:
        with self._changed:
            if self._free:
                return self._free.pop()
        return torch.empty(self.files.rows, self.files.elements)

    def _undo(self, key: Key, returned: Tensor | None, leaving: dict[Key, Tensor]) -> None:
        with self._changed:
            self._moving.difference_update(leaving)
            self._ahead.discard(key)
            if key in self._cache:
                self._cache.forget(key)
            if returned is not None:
                self._leaving[key] = returned
            self._moving.discard(key)
            self._changed.notify_all()
