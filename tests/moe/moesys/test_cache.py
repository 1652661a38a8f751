"""The cache of experts' states: vector V2 under each rule, a plain reference, and invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.moesys.cache import CachePolicy, FrequencyCache, Key, Kind, Rule
from tests.moe.moesys.reference_cache import LETTERS, PlainCache

NAMES = {(0, number): name for number, name in enumerate("ABCDE")}
KEYS = {name: key for key, name in NAMES.items()}


def played(cache: FrequencyCache, names: str) -> str:
    """Return the accesses in the notation of V2. All cached entries are dirty."""
    outcomes = []
    for name in names:
        access = cache.access(KEYS[name])
        if access.kind is not Kind.BYPASS:
            cache.mark_dirty(KEYS[name])
        outcomes.append(LETTERS.get(access.kind, "x" + "".join(NAMES[victim] for victim in access.victims)))
    return " ".join(outcomes)


@pytest.mark.parametrize(
    ("rule", "outcomes", "hits", "reads", "write_backs", "final"),
    [
        (Rule.COLD, "f f h f xB xC h h xB h", 4, 6, 3, {"A": 2.0, "D": 2.5, "E": 1.0}),
        (Rule.LITERAL, "f f h f b h b h b b", 3, 7, 0, {"A": 2.0, "B": 1.0, "C": 0.5}),
        (Rule.PROSE, "f f h f xA h h xC xB h", 4, 6, 3, {"A": 1.0, "D": 2.5, "E": 1.0}),
    ],
)
def test_v2_under_each_rule(
    rule: Rule, outcomes: str, hits: int, reads: int, write_backs: int, final: dict[str, float]
) -> None:
    cache = FrequencyCache(CachePolicy(3, rule, threshold=2.0, attenuation=0.5, period=6))
    assert played(cache, "ABACDBDAED") == outcomes
    assert (cache.counts.hits, cache.counts.reads, cache.counts.write_backs) == (hits, reads, write_backs)
    assert {NAMES[key]: count for key, count in cache.frequencies().items()} == final


def test_v2_of_the_least_recently_used_reference() -> None:
    plain = PlainCache(CachePolicy(3, threshold=2.0, attenuation=0.5, period=6), lru=True)
    outcomes = [plain.access(KEYS[name]) for name in "ABACDBDAED"]
    left = {f"x{key}": f"x{name}" for key, name in NAMES.items()}
    assert " ".join(left.get(outcome, outcome) for outcome in outcomes) == "f f h f xB xA h xC xB h"


def test_strict_capacity_leaves_a_slot_unused() -> None:
    policy = CachePolicy(3, Rule.PROSE, threshold=2.0, attenuation=0.5, period=6, strict_capacity=True)
    cache = FrequencyCache(policy)
    played(cache, "ABACDBDAED")
    assert (cache.counts.hits, cache.counts.reads, cache.counts.write_backs) == (3, 7, 5)
    assert {NAMES[key]: count for key, count in cache.frequencies().items()} == {"D": 2.5, "E": 1.0}


def compared(policy: CachePolicy, keys: np.ndarray) -> None:
    cache, plain = FrequencyCache(policy), PlainCache(policy)
    for number in keys:
        key = (int(number) // 8, int(number) % 8)
        access = cache.access(key)
        outcomes = LETTERS.get(access.kind) or f"x{access.victims[0]}"
        assert outcomes == plain.access(key)
    assert cache.frequencies() == pytest.approx(plain.counts)


@pytest.mark.parametrize("rule", list(Rule))
def test_heap_and_scaled_decay_equal_scan_and_eager_decay(rule: Rule) -> None:
    """100,000 accesses over the four rules. Counts are rescaled after each 3,600 accesses."""
    keys = np.random.default_rng(5).zipf(1.4, 25_000) % 48
    compared(CachePolicy(12, rule, threshold=2.0, attenuation=0.5, period=90), keys)


def hit_rate(attenuation: float, shifted: bool) -> float:
    """Return the hit rate of 128 of 512 keys under Zipf's law; halfway, popularity may shift."""
    rng = np.random.default_rng(0)
    weights = 1.0 / np.arange(1, 513)
    keys = rng.choice(512, 40_000, p=weights / weights.sum())
    if shifted:
        keys[20_000:] = (keys[20_000:] + 256) % 512
    cache = FrequencyCache(CachePolicy(128, attenuation=attenuation, period=200))
    for key in keys:
        cache.access((0, int(key)))
    return cache.counts.hits / cache.counts.accesses


def test_decay_keeps_the_hit_rate_when_popularity_shifts() -> None:
    assert hit_rate(0.9, shifted=True) >= 0.70
    assert hit_rate(1.0, shifted=True) < 0.55
    assert hit_rate(0.9, shifted=False) > 0.75


@given(
    st.lists(
        st.tuples(
            st.integers(0, 11), st.integers(1, 3), st.sampled_from(["use", "ahead", "dirty", "flush", "pin"])
        ),
        max_size=80,
    ),
    st.integers(0, 9),
    st.sampled_from(list(Rule)),
)
def test_invariants_hold_after_every_step(
    steps: list[tuple[int, int, str]], capacity: int, rule: Rule
) -> None:
    cache = FrequencyCache(CachePolicy(capacity, rule, threshold=1.5, attenuation=0.5, period=5))
    sizes: dict[Key, int] = {}
    changed: set[Key] = set()
    written: list[Key] = []
    pinned: list[Key] = []
    for number, size, what in steps:
        key = (number // 4, number % 4)
        size = sizes.setdefault(key, size)
        if what == "flush":
            written += cache.dirty_keys()
            cache.mark_flushed(cache.dirty_keys())
            changed.difference_update(written)
            continue
        if what == "pin":
            cache.pin(key)
            pinned += [key] * (key in cache)
        access = cache.decide(key, size, is_ahead=what == "ahead")
        assert set(access.write_back) == changed & set(access.victims)
        cache.apply(access)
        changed -= set(access.victims)
        if what == "dirty" and key in cache:
            cache.mark_dirty(key)
            changed.add(key)
        assert cache.used == sum(sizes[cached] for cached in cache) <= capacity
        assert set(cache.frequencies()) == set(cache)
        assert set(cache.dirty_keys()) == changed
        assert set(pinned) <= set(cache)
        assert (key in cache) == (access.kind is not Kind.BYPASS)
    counts = cache.counts
    assert counts.hits + counts.misses == counts.accesses


def test_pinned_entries_stay_and_a_new_one_bypasses() -> None:
    cache = FrequencyCache(CachePolicy(2))
    cache.access((0, 0))
    cache.access((0, 1))
    cache.pin((0, 0))
    cache.pin((0, 1))
    assert cache.access((0, 2)).kind is Kind.BYPASS
    cache.unpin((0, 1))
    assert cache.access((0, 2)).victims == ((0, 1),)


def test_a_decision_changes_nothing() -> None:
    """A victim is written between the two, so a failure there loses nothing."""
    cache = FrequencyCache(CachePolicy(1))
    cache.access((0, 0))
    cache.mark_dirty((0, 0))
    decided = cache.decide((0, 1))
    assert decided.write_back == ((0, 0),)
    assert cache.dirty_keys() == ((0, 0),)
    cache.apply(decided)
    with pytest.raises(ValueError, match="decide it again"):
        cache.apply(decided)


def test_an_entry_fetched_ahead_counts_when_it_is_used() -> None:
    cache = FrequencyCache(CachePolicy(2))
    cache.apply(cache.decide((0, 0), is_ahead=True))
    assert cache.frequency((0, 0)) == 0.0
    assert cache.access((0, 0)).kind is Kind.HIT
    assert cache.frequency((0, 0)) == 1.0
    assert (cache.counts.accesses, cache.counts.hits, cache.counts.reads) == (1, 1, 1)


def test_edges_of_capacity() -> None:
    nothing = FrequencyCache(CachePolicy(0))
    assert nothing.access((0, 0)).kind is Kind.BYPASS
    large = FrequencyCache(CachePolicy(4))
    assert large.access((0, 0), size=5).kind is Kind.BYPASS
    large.access((0, 1), size=2)
    large.access((0, 2), size=2)
    assert set(large.access((0, 3), size=3).victims) == {(0, 1), (0, 2)}


@pytest.mark.parametrize(
    ("field", "value"), [("capacity", -1), ("attenuation", 0.0), ("attenuation", 1.5), ("period", 0)]
)
def test_an_error_names_the_field(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        CachePolicy(**{"capacity": 3, field: value})  # type: ignore[arg-type]
