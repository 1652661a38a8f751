"""Placement of experts by popularity (V6), its invariants, and how near it comes to the best one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]

from moe.lina.expert_placement import even_placement, place_experts


def planned(placement):
    """Return the shares of each device by expert."""
    return [
        {expert: pytest.approx(placement.shares[device, expert]) for expert in placement.experts_of(device)}
        for device in range(placement.devices)
    ]


def test_v6_three_experts():
    placement = place_experts(np.array([0.5, 1.25, 1.25]), 3)
    assert planned(placement) == [{1: 1.0}, {2: 1.0}, {0: 0.5, 1: 0.25, 2: 0.25}]


def test_v6_expert_without_estimate_gets_a_random_place():
    demands = np.array([0, 1.5, 1.5])
    for seed in range(3):
        devices = planned(place_experts(demands, 3, seed=seed))
        assert [device.pop(0) for device in devices if 0 in device] == [0.0]
        assert devices == [{1: 1.0}, {2: 1.0}, {1: 0.5, 2: 0.5}]
    assert {place_experts(demands, 3, seed=seed).hosts(0) for seed in range(30)} == {(0,), (1,), (2,)}


def test_v6_eight_devices():
    placement = place_experts(np.array([2.4, 0.7, 0.5, 0.3, 0, 0, 0, 0]), 8)
    assert planned(placement) == [
        {0: 1.0}, {0: 1.0}, {1: 0.7, 3: 0.3}, {2: 0.5, 0: 0.4}, {4: 0.0}, {5: 0.0}, {6: 0.0}, {7: 0.0},
    ]  # fmt: skip


def test_v6_overflow_goes_to_the_least_loaded_device():
    placement = place_experts(np.array([0.6, 0.6, 0.6]), 2)
    assert [placement.experts_of(device) for device in (0, 1)] == [(0, 2), (1,)]
    assert placement.loads == pytest.approx([1.2, 0.6])


def test_v6_no_device_hosts_more_than_four():
    placement = place_experts(np.array([1.0, 1.0, 1.0] + [0] * 13), 4, most_on_device=4, seed=3)
    assert placement.experts_of(3) == (3, 4, 5, 6)
    assert placement.hosted.sum(axis=1).tolist() == [4, 4, 4, 4]
    assert [placement.experts_of(device)[0] for device in range(3)] == [0, 1, 2]


def test_an_expert_with_all_tokens_is_on_every_device():
    placement = place_experts(np.array([4.0, 0, 0, 0]), 4)
    assert placement.hosts(0) == (0, 1, 2, 3)
    assert all(len(placement.hosts(expert)) == 1 for expert in (1, 2, 3))


def test_equal_popularity_gives_the_even_placement():
    assert (place_experts(np.ones(4), 4).hosted == even_placement(4, 4).hosted).all()


def test_replicas_leave_a_place_for_every_expert():
    placement = place_experts(np.array([4.0] + [0] * 15), 4, most_on_device=4)
    assert placement.hosted.any(axis=0).all()
    # One replica is all that 16 experts leave room for; it takes the whole demand.
    assert len(placement.hosts(0)) == 1
    assert placement.shares.sum() == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("experts", "devices", "hosted"),
    [
        (4, 4, [(0,), (1,), (2,), (3,)]),
        (8, 3, [(0, 1, 2), (3, 4, 5), (6, 7)]),
        (2, 5, [(0,), (0,), (0,), (1,), (1,)]),
    ],
)
def test_even_placement(experts, devices, hosted):
    placement = even_placement(experts, devices)
    assert [placement.experts_of(device) for device in range(devices)] == hosted


@st.composite
def placements(draw):
    """Draw demands, devices, most experts on a device, and a seed."""
    devices = draw(st.integers(1, 12))
    most = draw(st.integers(1, 5))
    demand = st.one_of(st.just(0.0), st.floats(0, devices), st.integers(0, 3).map(float))
    demands = np.array(draw(st.lists(demand, min_size=1, max_size=most * devices)))
    if draw(st.booleans()) and demands.any():
        demands = demands * devices / demands.sum()
    return demands, devices, most, draw(st.integers(0, 3))


def check_invariants(drawn):
    demands, devices, most, seed = drawn
    placement = place_experts(demands, devices, most_on_device=most, seed=seed)
    assert placement.hosted.any(axis=0).all()
    assert placement.hosted.sum(axis=1).max() <= most
    assert not placement.shares[~placement.hosted].any()
    assert placement.shares.sum(axis=0) == pytest.approx(demands, abs=2e-6)
    again = place_experts(demands, devices, most_on_device=most, seed=seed)
    assert (again.hosted == placement.hosted).all()


@given(placements())
def test_placements_keep_every_invariant(drawn):
    check_invariants(drawn)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=10_000, deadline=None)
@given(placements())
def test_ten_thousand_placements_keep_every_invariant(drawn):
    check_invariants(drawn)


def find_least_load(demands, devices):
    """Return the exact least load of the fullest device, if whole replicas and remainders are not split."""
    pieces = [
        piece for demand in demands for piece in (*[1.0] * int(demand), demand - int(demand)) if piece > 0
    ]
    count = len(pieces)
    # Variables: piece p on device d, then the largest load.
    once = np.hstack([np.kron(np.eye(count), np.ones(devices)), np.zeros((count, 1))])
    loads = np.hstack([np.kron(pieces, np.eye(devices)), -np.ones((devices, 1))])
    solved = milp(
        c=np.append(np.zeros(count * devices), 1.0),
        constraints=[LinearConstraint(once, 1, 1), LinearConstraint(loads, ub=0)],
        integrality=np.append(np.ones(count * devices), 0),
        bounds=Bounds(0, np.append(np.ones(count * devices), np.inf)),
    )
    assert solved.success
    return solved.fun


@given(st.integers(2, 4), st.lists(st.integers(1, 20), min_size=2, max_size=6))
def test_fullest_device_is_within_a_third_of_the_least(devices, weights):
    demands = np.array(weights) * devices / sum(weights)
    largest = place_experts(demands, devices, most_on_device=8).loads.max()
    assert largest <= 4 / 3 * find_least_load(demands, devices) + 1e-6


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: place_experts(np.ones(9), 2, most_on_device=4), "2 devices must have room for 9 experts"),
        (lambda: place_experts(np.array([-1.0]), 2), "demands are .* at least 0"),
        (lambda: place_experts(np.array([np.nan]), 2), "demands are .* at least 0"),
        (lambda: place_experts(np.ones(2), 0), "devices is 0; it must be at least 1"),
        (lambda: even_placement(0, 2), "experts is 0; it must be at least 1"),
    ],
)
def test_wrong_demands_and_sizes_are_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
