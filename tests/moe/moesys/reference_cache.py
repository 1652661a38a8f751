"""A plain cache to compare with: it multiplies counts one by one and scans all entries for a victim."""

from __future__ import annotations

from moe.moesys.cache import CachePolicy, Key, Rule

LETTERS = {"hit": "h", "fill": "f", "bypass": "b"}


class PlainCache:
    """A cache of entries of size 1."""

    def __init__(self, policy: CachePolicy, lru: bool = False) -> None:
        self.policy, self.lru = policy, lru
        self.counts: dict[Key, float] = {}
        self.last: dict[Key, int] = {}
        self.clock = self.steps = 0

    def access(self, key: Key) -> str:
        """Return h, f, b, or x and the key that left."""
        self.clock += 1
        outcome = self._outcome(key)
        self.steps += 1
        if self.steps == self.policy.period:
            self.steps = 0
            for cached in self.counts:
                self.counts[cached] *= self.policy.attenuation
        return outcome

    def _outcome(self, key: Key) -> str:
        if key in self.counts:
            self.counts[key] += 1
            self.last[key] = self.clock
            return "h"
        outcome = "f"
        if len(self.counts) >= self.policy.capacity - self.policy.strict_capacity:
            victim = self._victim()
            if victim is None:
                return "b"
            del self.counts[victim], self.last[victim]
            outcome = f"x{victim}"
        self.counts[key], self.last[key] = 1.0, self.clock
        return outcome

    def _victim(self) -> Key | None:
        def order(key: Key) -> tuple[float, int, Key]:
            return (0.0 if self.lru else self.counts[key], self.last[key], key)

        ordered = sorted(self.counts, key=order)
        candidates = [key for key in ordered if self.counts[key] >= self.policy.threshold]
        if not ordered or self.lru or self.policy.rule is Rule.COLD:
            return ordered[0] if ordered else None
        if self.policy.rule is Rule.LITERAL:
            return ordered[0] if candidates and candidates[0] == ordered[0] else None
        return candidates[0] if candidates else ordered[0]
