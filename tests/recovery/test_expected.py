"""Promises with failing servers: throughput times 1 - λ·O, and no failure charged twice."""

from __future__ import annotations

from math import exp, factorial, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.costs.expected import LEAST_SHARE, ExpectedFailures, failures_beyond
from recovery.costs.failures import SECONDS_PER_DAY, FailureCost

rates = st.floats(0.0, 50.0)
costs = st.builds(FailureCost, *(st.floats(0.0, 2000.0) for _ in range(4)))
covers = st.integers(0, 4)


def minutes(count: float) -> FailureCost:
    return FailureCost(0.0, 0.0, 0.0, 60.0 * count)


@pytest.mark.parametrize(
    ("machines", "in_memory", "durable"),
    [
        (200, 0.9812, 0.7667),
        (400, 0.9625, 0.5333),
        (600, 0.9437, 0.3),
        (800, 0.925, 0.0667),
        (1000, 0.9062, 0),
    ],
)
def test_promised_rates_of_published_machines_match_the_specification(
    machines: int, in_memory: float, durable: float
) -> None:
    """Gemini G8 and section 7: 9 minutes a failure with states in memory, 112 without."""
    expected = ExpectedFailures(0.015, server_gpus=8)
    assert expected.share(8 * machines, minutes(9.0)) == pytest.approx(in_memory, abs=6e-5)
    assert expected.share(8 * machines, minutes(112.0)) == pytest.approx(durable, abs=6e-5)


@given(st.floats(0.0, 30.0), covers)
def test_failures_beyond_the_covered_are_those_of_poisson(mean: float, covered: int) -> None:
    brute = sum((x - covered) * exp(-mean) * mean**x / factorial(x) for x in range(covered + 1, 140))
    assert failures_beyond(mean, covered) == pytest.approx(brute, abs=1e-9)


@given(st.integers(1, 4096), st.integers(1, 16), costs, covers, st.floats(1.0, 1e7))
def test_servers_that_never_fail_leave_promises_unchanged(
    gpus: int, server_gpus: int, cost: FailureCost, covered: int, seconds: float
) -> None:
    assert ExpectedFailures(0.0, server_gpus, covered).share(gpus, cost, seconds) == 1.0


@given(rates, rates, st.integers(1, 512), st.integers(1, 512), costs, covers, st.floats(1.0, 1e7))
def test_promised_rates_fall_with_failures_and_with_servers(
    one: float, other: float, few: int, many: int, cost: FailureCost, covered: int, seconds: float
) -> None:
    def share(a_day: float, gpus: int) -> float:
        return ExpectedFailures(a_day, 8, covered).share(gpus, cost, seconds)

    one, other = sorted((one, other))
    few, many = sorted((few, many))
    assert share(other, few) <= share(one, few) + 1e-9
    assert share(one, many) <= share(one, few) + 1e-9


@given(rates, costs, covers, st.floats(1.0, 1e7))
def test_slack_and_expectation_charge_each_failure_once(
    a_day: float, cost: FailureCost, covered: int, seconds: float
) -> None:
    """The failures expected until the deadline are charged; beyond them at most the slack itself."""
    share = ExpectedFailures(a_day, 8, covered).share(8, cost, seconds)
    if share == LEAST_SHARE:
        return
    paid = covered * cost.seconds + (1.0 - share) * seconds
    expected = a_day * seconds / SECONDS_PER_DAY * cost.seconds
    assert (
        expected - 1e-6 * (1 + expected) <= paid <= expected + covered * cost.seconds + 1e-6 * (1 + expected)
    )


@given(rates, costs, covers, st.floats(1.0, 1e7), st.floats(1.0, 1e7))
def test_a_later_deadline_never_leaves_less_time_to_train(
    a_day: float, cost: FailureCost, covered: int, one: float, other: float
) -> None:
    expected = ExpectedFailures(a_day, 8, covered)
    one, other = sorted((one, other))
    soon, late = (seconds * expected.share(8, cost, seconds) for seconds in (one, other))
    if expected.share(8, cost, inf) > LEAST_SHARE:
        assert soon <= late * (1 + 1e-9) + 1e-6


def test_a_level_needs_as_few_servers_as_hold_its_gpus() -> None:
    expected = ExpectedFailures(1.0, server_gpus=4)
    lost = [1.0 - share for share in expected.shares([1, 4, 8, 12, 16], minutes(1.0))]
    assert lost == pytest.approx([servers / 1440 for servers in (1, 1, 2, 3, 4)])
