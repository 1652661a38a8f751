"""How many servers a deployment needs: added before latency exceeds its target, removed after a calm time."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.core.scaling import (
    CALM_PERIODS,
    Load,
    ScalingRule,
    predicted_latency,
    servers_demanded,
    servers_for,
    wanted_servers,
)

RULE = ScalingRule(1, 4, latency_target_seconds=0.2)


def load(busy: float, service: float = 0.05, **more: float) -> Load:
    return Load(busy_servers=busy, service_seconds=service, **more)  # type: ignore[arg-type]


def test_latency_is_predicted_from_busy_time() -> None:
    assert predicted_latency(0.05, 0.0, 1) == 0.05
    assert predicted_latency(0.05, 0.5, 1) == pytest.approx(0.1)
    assert predicted_latency(0.05, 1.0, 2) == pytest.approx(0.1)
    assert predicted_latency(0.05, 2.0, 2) == inf


def test_servers_are_added_before_the_target_is_exceeded() -> None:
    """A server that is busy for 0.6 of the time answers in 200 ms if a batch takes 80 ms."""
    assert servers_for(RULE, load(0.59, 0.08)) == 1
    assert servers_for(RULE, load(0.61, 0.08)) == 2
    assert wanted_servers(RULE, 1, [load(0.61, 0.08)]).servers == 2


def test_servers_are_added_without_a_target_too() -> None:
    rule = ScalingRule(1, 4)
    assert [servers_for(rule, load(busy)) for busy in (0.0, 0.7, 0.71, 1.4, 2.8, 9.0)] == [1, 1, 2, 2, 4, 4]


def test_a_function_slower_than_the_target_adds_no_servers() -> None:
    slow = load(0.1, 0.5, latency_seconds=0.5)
    assert wanted_servers(RULE, 1, [slow] * 5).servers == 1


def test_measured_latency_and_refusals_add_a_server() -> None:
    assert wanted_servers(RULE, 2, [load(0.9, latency_seconds=0.3)]).servers == 3
    assert wanted_servers(RULE, 2, [Load(0.5, 0.05, 0.1, refused=1)]).servers == 3


def test_latency_without_queueing_adds_no_server() -> None:
    """Of 300 ms with servers busy for a quarter of the time, 225 ms are no waiting."""
    assert wanted_servers(RULE, 2, [load(0.5, latency_seconds=0.3)]).servers == 2


def test_a_load_demands_servers_at_the_capacity_of_its_target() -> None:
    """A batch of 80 ms answers within 200 ms while servers are busy for up to 0.6 of the time."""
    assert servers_demanded(RULE, 2, load(0.9, 0.08)) == pytest.approx(1.5)
    assert servers_demanded(RULE, 2, load(0.7, 0.01)) == pytest.approx(1.0)
    assert servers_demanded(RULE, 2, load(0.7, 0.5)) == pytest.approx(1.0)
    assert servers_demanded(ScalingRule(1, 4), 1, load(9.0)) == 4.0
    assert servers_demanded(RULE, 1, Load()) == 0.0
    assert servers_demanded(RULE, 2, Load(0.5, 0.05, 0.1, refused=1)) == 3.0


def test_servers_are_removed_one_by_one_after_calm_periods() -> None:
    calm = load(0.3, latency_seconds=0.06)
    assert wanted_servers(RULE, 3, [calm] * (CALM_PERIODS - 1)).servers == 3
    assert wanted_servers(RULE, 3, [calm] * CALM_PERIODS).servers == 2
    assert wanted_servers(RULE, 3, [load(2.0)] + [calm] * (CALM_PERIODS - 1)).servers == 3
    assert wanted_servers(RULE, 1, [calm] * 2 * CALM_PERIODS).servers == 1


def test_load_at_the_threshold_does_not_oscillate() -> None:
    present, moves = 1, 0
    history: list[Load] = []
    for number in range(200):
        history.append(load(0.69 if number % 2 else 0.72))
        needed = wanted_servers(RULE, present, history).servers
        moves += needed != present
        present = needed
    assert (present, moves) == (2, 1)


loads = st.builds(
    Load,
    busy_servers=st.floats(0, 10),
    service_seconds=st.floats(0, 1),
    latency_seconds=st.none() | st.floats(0, 10),
    refused=st.integers(0, 3),
)


@given(st.integers(0, 9), st.lists(loads, max_size=2 * CALM_PERIODS), st.integers(1, 3), st.integers(3, 6))
def test_bounds_hold_for_any_measurement(present: int, history: list[Load], least: int, most: int) -> None:
    rule = ScalingRule(least, most, 0.2)
    decision = wanted_servers(rule, present, history)
    assert least <= decision.servers <= most
    assert decision.reason


@given(loads, loads)
def test_more_load_never_needs_fewer_servers(one: Load, other: Load) -> None:
    rule = ScalingRule(1, 8, 0.2)
    busier = Load(one.busy_servers + other.busy_servers, one.service_seconds)
    assert servers_for(rule, busier) >= servers_for(rule, Load(one.busy_servers, one.service_seconds))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"least": 0, "most": 1}, "from 0 to 1"),
        ({"least": 2, "most": 1}, "from 2 to 1"),
        ({"least": 1, "most": 1, "latency_target_seconds": 0.0}, "latency_target_seconds"),
    ],
)
def test_a_rule_names_a_wrong_bound(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ScalingRule(**wrong)  # type: ignore[arg-type]
