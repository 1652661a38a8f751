"""Recovery probability: worked examples (G2) and brute force; replicas and standby
servers."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb, expm1

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.placement.domains import FailureDomains
from recovery.placement.memory import Machine, placed_on
from recovery.placement.strategies import Strategy, place
from recovery.probability.replicas import FailureRates, choose_replicas, fallbacks_a_day
from recovery.probability.standby import probability_of_more, standby_servers
from recovery.probability.surviving import (
    corollary,
    probability_with_independent_failures,
    recovery_probability,
    ring_union_estimate,
    safe_losses,
    upper_bound,
)

G2 = [
    # machines, replicas, lost, exact, corollary, exact ring, union estimate of the ring
    (4, 2, 2, "2/3", 0.6667, 0.3333, 0.3333),
    (16, 2, 2, "14/15", 0.9333, 0.8667, 0.8667),
    (16, 2, 3, "4/5", 0.8, 0.6286, 0.60),
    (16, 2, 4, "8/13", 0.60, 0.3626, 0.20),
    (12, 3, 3, "54/55", 0.9818, 0.9455, 0.9455),
    (12, 3, 4, "51/55", 0.9273, 0.8061, 0.7818),
    (12, 3, 6, "9/14", 0.6364, 0.3052, 0.0),
    (5, 2, 2, "3/5", None, 0.5, 0.5),
    (7, 3, 3, "6/7", None, 0.8, 0.8),
    (8, 3, 3, "25/28", None, 0.8571, 0.8571),
    (8, 3, 4, "9/14", None, 0.5429, 0.4286),
]


@pytest.mark.parametrize(("machines", "replicas", "lost", "exact", "by_corollary", "ring", "union"), G2)
def test_worked_examples(machines, replicas, lost, exact, by_corollary, ring, union):
    assert recovery_probability(machines, replicas, lost) == Fraction(exact)
    of_ring = recovery_probability(machines, replicas, lost, Strategy.RING)
    assert float(of_ring) == pytest.approx(ring, abs=5e-5)
    assert float(ring_union_estimate(machines, replicas, lost)) == pytest.approx(union, abs=5e-5)
    if by_corollary is None:
        with pytest.raises(ValueError, match=f"{replicas} does not divide {machines}"):
            corollary(machines, replicas, lost)
    else:
        assert float(corollary(machines, replicas, lost)) == pytest.approx(by_corollary, abs=5e-5)


@pytest.mark.parametrize(("machines", "expected"), [(128, 0.99213), (1000, 0.998999)])
def test_large_clusters(machines, expected):
    assert float(recovery_probability(machines, 2, 2)) == pytest.approx(expected, abs=5e-7 * 10)
    assert corollary(machines, 2, 2) == recovery_probability(machines, 2, 2)


def brute_force(machines, replicas, lost, strategy):
    held = place(machines, replicas, strategy).replica_sets()
    return sum(
        not any(replica_set <= set(dead) for replica_set in held)
        for dead in combinations(range(machines), lost)
    )


@pytest.mark.parametrize("machines", range(1, 13))
def test_probabilities_up_to_twelve_machines_equal_brute_force(machines):
    for replicas in range(1, min(4, machines) + 1):
        for strategy in (Strategy.MIXED, Strategy.RING):
            for lost in range(machines + 1):
                expected = brute_force(machines, replicas, lost, strategy)
                assert safe_losses(machines, replicas, lost, strategy) == expected


@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 60))
def test_mixed_is_never_worse_than_the_ring_nor_better_than_the_bound(machines, replicas, lost):
    replicas, lost = min(replicas, machines), min(lost, machines)
    mixed = recovery_probability(machines, replicas, lost)
    assert mixed >= recovery_probability(machines, replicas, lost, Strategy.RING)
    assert mixed == 1 or lost >= replicas
    if lost == replicas:
        assert mixed <= upper_bound(machines, replicas)
    if machines % replicas == 0:
        assert mixed >= corollary(machines, replicas, lost)
        assert lost >= 2 * replicas or mixed == corollary(machines, replicas, lost)
    assert recovery_probability(machines, replicas, lost, Strategy.RING) >= ring_union_estimate(
        machines, replicas, lost
    )


@pytest.mark.parametrize(
    ("machines", "replicas", "sets", "gap"), [(5, 2, 4, 1), (7, 3, 5, 2), (8, 3, 6, 3), (11, 4, 8, 5)]
)
def test_distance_to_the_bound(machines, replicas, sets, gap):
    assert len(place(machines, replicas).replica_sets()) == sets
    distance = upper_bound(machines, replicas) - recovery_probability(machines, replicas, replicas)
    assert distance == Fraction(gap, comb(machines, replicas))
    assert gap <= 2 * replicas - 3
    assert upper_bound(5, 2) == Fraction(7, 10)


def test_independent_failures():
    assert probability_with_independent_failures(16, 2, 0.015) == pytest.approx(0.99820, abs=5e-6)


@given(st.integers(1, 10), st.integers(1, 4), st.floats(0.0, 1.0))
def test_independent_failures_are_the_mean_over_numbers_of_losses(machines, replicas, probability):
    replicas = min(replicas, machines)
    expected = sum(
        safe_losses(machines, replicas, lost) * probability**lost * (1.0 - probability) ** (machines - lost)
        for lost in range(machines + 1)
    )
    recovered = probability_with_independent_failures(machines, replicas, probability)
    assert recovered == pytest.approx(expected, abs=1e-9)


# Replicas from a target -----------------------------------------------------------------------

PUBLISHED = FailureRates(0.015, recovery_seconds=720.0)


def apart(count):
    return [FailureDomains() for _ in range(count)]


def test_the_published_rate_falls_back_about_every_year_and_a_half():
    """A thousand machines in pairs: 1.25e-4 for each failure, 0.0019 a day."""
    daily = fallbacks_a_day(place(1000, 2), apart(1000), PUBLISHED)
    assert daily == pytest.approx(15 * -expm1(-0.015 * 720 / 86_400), rel=1e-9)
    assert daily == pytest.approx(0.0019, abs=5e-5)


def test_one_replica_falls_back_with_every_failure():
    assert fallbacks_a_day(place(16, 1), apart(16), PUBLISHED) == pytest.approx(16 * 0.015)


def test_every_failure_of_a_rack_holding_a_pair_counts():
    domains = [FailureDomains(rack="a"), FailureDomains(rack="a"), FailureDomains(rack="b"), FailureDomains()]
    rates = FailureRates(0.0, rack_a_day=0.1, recovery_seconds=0.0)
    assert fallbacks_a_day(place(4, 2), domains, rates) == pytest.approx(0.1)
    spread = placed_on([Machine(str(at), 1, 1, domain) for at, domain in enumerate(domains)], 2)
    assert fallbacks_a_day(spread, domains, rates) == 0.0


@given(st.integers(2, 12), st.integers(1, 3), st.floats(0.0, 0.5), st.floats(1.0, 10_000.0))
def test_the_bound_covers_pairs_of_failures(count, replicas, rate, window):
    """At least: a first failure, and the rest of one set within the window."""
    replicas = min(replicas, count)
    placement = place(count, replicas)
    rates = FailureRates(rate, recovery_seconds=window)
    rest = (-expm1(-rate * window / 86_400.0)) ** (replicas - 1)
    assert fallbacks_a_day(placement, apart(count), rates) >= count * rate * rest - 1e-12


def test_the_fewest_replicas_that_reach_the_target_are_chosen():
    cluster = [Machine(str(at), 1, 1) for at in range(1000)]
    assert choose_replicas(cluster, PUBLISHED, 0.1).replicas == 2
    chosen = choose_replicas(cluster, PUBLISHED, 0.01)
    assert chosen.replicas == 3
    assert chosen.reason == ""
    assert chosen.fallback_probability[1] == pytest.approx(-expm1(-30 * 0.001875), abs=1e-3)
    assert chosen.fallback_probability[2] < 0.01 < chosen.fallback_probability[1]


def test_joint_failure_domains_need_more_replicas_or_a_warning():
    """Three power domains: two replicas can be apart; with one domain, no number of replicas helps."""
    rates = FailureRates(0.001, power_a_day=0.01)
    apart_in_power = [Machine(str(at), 1, 1, FailureDomains(power=f"p{at % 3}")) for at in range(12)]
    assert choose_replicas(apart_in_power, rates, 0.01).replicas == 2
    together = [Machine(str(at), 1, 1, FailureDomains(power="p")) for at in range(12)]
    chosen = choose_replicas(together, rates, 0.01)
    assert min(chosen.fallback_probability) > 0.25
    assert "with a probability of up to 0.26, and 0.01 was asked for" in chosen.reason


def test_helper_machines_hold_copies_beyond_the_jobs_own_machines():
    alone, beside = [Machine("a", 1, 1)], [Machine("b", 1, 0), Machine("c", 1, 0)]
    rates = FailureRates(0.015, recovery_seconds=720.0)
    without = choose_replicas(alone, rates, 1e-3)
    assert (without.replicas, bool(without.reason)) == (1, True)
    assert choose_replicas(alone, rates, 1e-3, helpers=beside).replicas == 2
    assert choose_replicas(alone, rates, 1e-6, helpers=beside).replicas == 3
    # Helpers that are not needed leave the result with fewer copies unchanged.
    pair = [*alone, Machine("d", 1, 1)]
    assert choose_replicas(pair, rates, 0.01, helpers=beside) == choose_replicas(pair, rates, 0.01)


@pytest.mark.parametrize("target", [0.0, 1.0, -1.0, float("nan")])
def test_a_target_is_a_probability(target):
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        choose_replicas([Machine("a", 1, 1)], PUBLISHED, target)


def test_rates_are_not_negative():
    with pytest.raises(ValueError, match="rack_a_day"):
        FailureRates(0.1, rack_a_day=-1.0)


# Standby servers ------------------------------------------------------------------------------


def test_the_pool_for_a_thousand_servers_is_one():
    """A mean of 0.0625 failures in one replacement: more than one with 0.2 %."""
    assert standby_servers(1000, failures_a_day=0.015) == 1
    assert probability_of_more(0.0625, 1) == pytest.approx(0.0019, abs=1e-4)
    assert probability_of_more(0.0625, 0) > 0.01


@given(st.integers(0, 5000), st.floats(0.0, 0.2))
def test_the_pool_is_the_smallest_that_meets_the_risk(servers, rate):
    spare = standby_servers(servers, failures_a_day=rate)
    mean = servers * rate * 360.0 / 86_400.0
    assert spare <= servers
    assert spare == servers or probability_of_more(mean, spare) < 0.01
    assert spare == 0 or probability_of_more(mean, spare - 1) >= 0.01


def test_a_pool_needs_sensible_figures():
    with pytest.raises(ValueError, match="failures_a_day"):
        standby_servers(10, failures_a_day=-0.1)
    with pytest.raises(ValueError, match="accepted_risk"):
        standby_servers(10, failures_a_day=0.015, accepted_risk=0.0)
