"""The choice of a scheme: a table of cases, and no cheaper scheme is ever passed over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.placement import PlacementShape
from communication.zen.choosing import (
    EXECUTABLE,
    HASHED,
    OperationTimes,
    choose_scheme,
    exchange_of,
)
from communication.zen.densification import Densification, Skew, beta_between
from communication.zen.drift import MOST_IMBALANCE
from communication.zen.formats import Format
from communication.zen.profile import SparsityProfile
from communication.zen.schemes import Scheme, received_bytes

NMT = Densification(0.0247, beta_between(0.0247, 128, 0.6153))
GBPS_25 = LinkProfile(between=LinkRate(0.0, 3.125e9), within=LinkRate(0.0, 150e9))


def tensor(law: Densification = NMT, elements: int = 112_000_000, width: int = 1, skew: float = 0.0):
    return SparsityProfile("embedding", elements, width, law, Skew(skew))


def chosen(law: Densification, servers: int, **more):
    return choose_scheme(tensor(law, **more), PlacementShape(servers, 1), GBPS_25)


@pytest.mark.parametrize(
    ("density", "beta", "servers", "scheme"),
    [
        # SparCML sends the same between two.
        (0.0247, NMT.beta, 2, Scheme.AGSPARSE),
        (0.0247, NMT.beta, 4, Scheme.ZEN),
        (0.0247, NMT.beta, 16, Scheme.ZEN),
        (0.0247, NMT.beta, 128, Scheme.ZEN),
        (0.0106, 0.75, 128, Scheme.ZEN),
        (0.6, 0.5, 16, Scheme.DENSE),
        (0.9, 0.0, 2, Scheme.DENSE),
        (0.0247, NMT.beta, 1, Scheme.DENSE),
        # Hardly any overlap: recursive doubling is best (Theorem 3.1.1).
        (0.0001, 0.97, 4, Scheme.SPARCML),
        (0.0, 0.0, 4, Scheme.DENSE),
    ],
)
def test_the_scheme_chosen_by_density_and_servers(density, beta, servers, scheme):
    choice = chosen(Densification(density, beta), servers)
    if density == 0.0:
        assert choice.cost.received_bytes <= choice.cost_of(Scheme.DENSE).received_bytes
    else:
        assert choice.scheme is scheme


profiles = st.builds(
    SparsityProfile,
    st.just("table"),
    st.integers(0, 10**6).map(lambda rows: rows * 8),
    st.sampled_from([1, 2, 8]),
    st.builds(Densification, st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
    st.builds(Skew, st.floats(0.0, 1.0)),
)
links = st.builds(
    LinkProfile,
    st.builds(LinkRate, st.floats(0.0, 0.01), st.floats(1e6, 1e11)),
    st.builds(LinkRate, st.floats(0.0, 0.001), st.floats(1e8, 1e12)),
    st.floats(0.05, 1.0),
)
placements = st.builds(PlacementShape, st.integers(1, 64), st.integers(1, 8))
operations = st.builds(OperationTimes, st.floats(0.0, 0.01), st.floats(0.0, 1e-7))


@given(profiles, placements, links, operations, st.booleans())
def test_the_choice_is_never_dearer_than_any_scheme(profile, placement, link, times, adaptive):
    choice = choose_scheme(profile, placement, link, times=times, adaptive_push=adaptive)
    asked = {cost.scheme for cost in choice.costs}
    assert Scheme.DENSE in asked
    assert choice.cost.seconds == min(cost.seconds for cost in choice.costs)
    missing = set(EXECUTABLE) - asked
    assert missing <= set(HASHED)
    assert bool(missing) == (choice.push_imbalance > MOST_IMBALANCE)
    exchange = exchange_of(profile, placement, adaptive_push=adaptive)
    for cost in choice.costs:
        assert cost.received_bytes == received_bytes(cost.scheme, exchange)
        assert cost.seconds >= cost.operation_seconds >= 0.0


@given(profiles, placements, links)
def test_an_adaptive_push_is_never_slower(profile, placement, link):
    fixed = choose_scheme(profile, placement, link)
    adaptive = choose_scheme(profile, placement, link, adaptive_push=True)
    assert adaptive.cost.seconds <= fixed.cost.seconds


def test_servers_exchange_the_sums_of_their_gpus():
    profile = tensor()
    exchange = exchange_of(profile, PlacementShape(16, 8))
    assert (exchange.participants, exchange.workers_each) == (16, 8)
    assert exchange.density() == pytest.approx(NMT.after(8))
    assert exchange.density(16) == pytest.approx(NMT.after(128))
    assert exchange.pull_format is Format.HASH_BITMAP
    choice = choose_scheme(profile, PlacementShape(16, 8), GBPS_25)
    assert choice.within_bytes == pytest.approx(2 * 7 / 8 * profile.dense_bytes)
    between = received_bytes(Scheme.ZEN, exchange)
    expected = between / 3.125e9 + choice.within_bytes / 150e9
    assert choice.cost_of(Scheme.ZEN).seconds == pytest.approx(expected)


def test_on_one_server_its_gpus_exchange_over_its_own_links():
    choice = choose_scheme(tensor(), PlacementShape(1, 8), GBPS_25)
    assert choice.participants == 8
    exchange = exchange_of(tensor(), PlacementShape(1, 8))
    assert exchange.density() == pytest.approx(NMT.after(1))
    assert exchange.density(8) == pytest.approx(NMT.after(8))
    assert choice.within_bytes == 0.0
    assert choice.cost.seconds == pytest.approx(choice.cost.received_bytes / 150e9)


def test_a_share_of_the_link_is_a_slower_link():
    half = LinkProfile(GBPS_25.between, GBPS_25.within, share=0.5)
    full, halved = (choose_scheme(tensor(), PlacementShape(8, 1), each) for each in (GBPS_25, half))
    assert halved.cost.seconds == pytest.approx(2 * full.cost.seconds)


def test_small_tensors_are_not_hashed():
    small = tensor(Densification(0.0106, 0.75), elements=100_000)
    choice = choose_scheme(small, PlacementShape(16, 1), GBPS_25)
    assert choice.push_imbalance > MOST_IMBALANCE
    assert choice.scheme not in HASHED


def test_an_expected_imbalance_is_charged():
    rows = tensor(elements=64 * 60_000, width=64)
    choice = choose_scheme(rows, PlacementShape(4, 1), GBPS_25)
    assert 1.05 < choice.push_imbalance < MOST_IMBALANCE
    even = received_bytes(
        Scheme.ZEN, exchange_of(tensor(elements=64 * 60_000_000, width=64), PlacementShape(4, 1))
    )
    assert choice.cost_of(Scheme.ZEN).received_bytes > 1.03 * even / 1000


def test_operations_count_against_sparse_schemes_alone():
    slow = OperationTimes(fixed_seconds=10.0)
    choice = choose_scheme(tensor(), PlacementShape(16, 1), GBPS_25, times=slow)
    assert choice.scheme is Scheme.DENSE
    assert choice.cost.operation_seconds == 0.0
    assert all(cost.operation_seconds == 10.0 for cost in choice.costs if cost.scheme is not Scheme.DENSE)


def test_schemes_without_dense_are_refused():
    with pytest.raises(ValueError, match="fall back"):
        choose_scheme(tensor(), PlacementShape(2, 1), GBPS_25, schemes=(Scheme.ZEN,))


def test_a_profile_has_whole_rows():
    with pytest.raises(ValueError, match="rows of 7"):
        tensor(elements=100, width=7)
    with pytest.raises(ValueError, match="there must be"):
        tensor(elements=2**32)
