"""Times of all-to-alls and the choice between them; steps of the hierarchical one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.moesys.all_to_all import (
    Algorithm,
    AllToAll,
    LinkRates,
    choose_all_to_all,
    even_pair_bytes,
    flat_seconds,
    hierarchical_seconds,
    uneven_flat_seconds,
)
from moe.moesys.hierarchical_exchange import (
    exchange_steps,
    messages_between,
)
from tests.moe.moesys.reference_exchange import after_first_phase, flat_exchange, hierarchical_exchange

GB = 1e9
V6 = LinkRates(within=100 * GB, leaf=10 * GB, spine=5 * GB, within_latency=2e-6, between_latency=1e-5)
EQUAL = LinkRates(spine=25 * GB)


def test_v6_two_servers_of_four():
    exchange = AllToAll(2, 4, 1e6)
    choice = choose_all_to_all(exchange, V6)
    assert choice.flat_seconds == pytest.approx(740e-6)
    assert choice.hierarchical_seconds == pytest.approx(476e-6)
    assert choice.flat_seconds / choice.seconds == pytest.approx(1.555, abs=5e-4)
    assert choice.algorithm is Algorithm.HIERARCHICAL


@pytest.mark.parametrize(("bytes_", "ratio"), [(4096, 3.71), (65_536, 1.84), (524_288, 1.06)])
def test_without_a_slow_spine_only_small_messages_gain(bytes_, ratio):
    exchange = AllToAll(4, 8, bytes_)
    assert flat_seconds(exchange, EQUAL) / hierarchical_seconds(exchange, EQUAL) == pytest.approx(
        ratio, abs=0.01
    )


def test_the_choice_flips_at_the_message_size():
    chosen = [choose_all_to_all(AllToAll(4, 8, bytes_), EQUAL).algorithm for bytes_ in (512e3, 1e6, 2e6)]
    assert chosen == [Algorithm.HIERARCHICAL, Algorithm.FLAT, Algorithm.FLAT]
    tie = AllToAll(2, 2, 0.0)
    none = replace(EQUAL, within_latency=0.0, between_latency=0.0)
    assert choose_all_to_all(tie, none).algorithm is Algorithm.HIERARCHICAL


@settings(max_examples=30)
@given(st.integers(1, 8), st.floats(0, 1e8))
def test_one_server_or_one_rank_on_each_has_no_hierarchy(ranks, bytes_):
    assert choose_all_to_all(AllToAll(1, ranks, bytes_), V6).algorithm is Algorithm.FLAT
    assert choose_all_to_all(AllToAll(ranks, 1, bytes_), V6).algorithm is Algorithm.FLAT


def test_gain_by_servers_with_three_quarters_of_the_spine():
    """MoESys, by both models of the spine."""
    for rates in (LinkRates(within_latency=0, between_latency=0),
                  LinkRates(within_latency=0, between_latency=0, oversubscription=1.5)):  # fmt: skip
        gains = [
            flat_seconds(x, rates) / hierarchical_seconds(x, rates)
            for x in (AllToAll(n, 8, 1e6) for n in (2, 4, 8, 16))
        ]
        assert gains == pytest.approx([1.10, 1.16, 1.17, 1.18], abs=0.04)
        assert gains == sorted(gains)


@settings(max_examples=30)
@given(st.integers(2, 8), st.integers(2, 8), st.floats(1e3, 1e8), st.floats(1.1, 8.0))
def test_a_slower_spine_raises_the_gain(servers, ranks, bytes_, slower):
    exchange = AllToAll(servers, ranks, bytes_)
    fast, slow = LinkRates(spine=25 * GB), LinkRates(spine=25 * GB / slower)
    assert hierarchical_seconds(exchange, fast) == hierarchical_seconds(exchange, slow)
    assert flat_seconds(exchange, slow) >= flat_seconds(exchange, fast)


def test_unequal_servers_cross_the_spine():
    even, uneven = uneven_flat_seconds((4, 4), 1e6, V6), uneven_flat_seconds((6, 2), 1e6, V6)
    assert flat_seconds(AllToAll(2, 4, 1e6), V6) < even < uneven
    assert uneven_flat_seconds((4,), 1e6, V6) == flat_seconds(AllToAll(1, 4, 1e6), V6)


def test_rails_and_bytes():
    assert even_pair_bytes(1024, 2, 512, 8) == 1024 * 2 * 512 * 2 / 8
    assert messages_between(2, 4) == (4, 1)
    with pytest.raises(ValueError, match="spine"):
        LinkRates(spine=0)
    with pytest.raises(ValueError, match="pair_bytes"):
        AllToAll(1, 1, -1)


def letters(rows):
    return "".join(chr(ord("A") + int(value)) for value in rows[:, 0])


def test_t4_two_servers_of_two():
    counts = np.ones((4, 4), dtype=np.int64)
    rows = [np.arange(4.0)[:, None]] * 4
    between = after_first_phase(rows, counts, 2)
    assert [letters(held) for held in between] == ["ACAC", "BDBD", "ACAC", "BDBD"]
    regrouped = [held[exchange_steps(counts, rank, 2).regroup] for rank, held in enumerate(between)]
    assert letters(regrouped[0]) == "AACC"
    assert [letters(held) for held in hierarchical_exchange(rows, counts, 2)] == [
        "AAAA",
        "BBBB",
        "CCCC",
        "DDDD",
    ]


@settings(max_examples=30)
@given(
    st.sampled_from([(1, 1), (1, 4), (2, 2), (2, 4), (4, 2), (3, 3)]),
    st.integers(0, 2**32 - 1),
    st.integers(0, 5),
)
def test_hierarchical_and_flat_give_the_same_rows(shape, seed, most):
    servers, ranks = shape
    chance = np.random.default_rng(seed)
    counts = chance.integers(0, most + 1, (servers * ranks, servers * ranks))
    rows = [chance.standard_normal((count, 3)) for count in counts.sum(axis=1)]
    flat, hierarchical = flat_exchange(rows, counts), hierarchical_exchange(rows, counts, ranks)
    for flat_rows, hierarchical_rows in zip(flat, hierarchical, strict=True):
        assert np.array_equal(flat_rows, hierarchical_rows)
    steps = [exchange_steps(counts, rank, ranks) for rank in range(len(counts))]
    # Sent and received splits agree in both phases.
    for rank, step in enumerate(steps):
        server, local = divmod(rank, ranks)
        within = [steps[server * ranks + peer].within.receive[local] for peer in range(ranks)]
        between = [steps[peer * ranks + local].between.receive[server] for peer in range(servers)]
        assert step.within.send.tolist() == within
        assert step.between.send.tolist() == between


@pytest.mark.parametrize(
    ("counts", "rank", "ranks", "reason"),
    [
        (np.ones((2, 3), dtype=np.int64), 0, 1, "counts"),
        (-np.ones((2, 2), dtype=np.int64), 0, 1, "counts"),
        (np.ones((3, 3), dtype=np.int64), 0, 2, "fill servers"),
        (np.ones((2, 2), dtype=np.int64), 2, 2, "rank"),
    ],
)
def test_an_error_names_wrong_counts(counts, rank, ranks, reason):
    with pytest.raises(ValueError, match=reason):
        exchange_steps(counts, rank, ranks)
