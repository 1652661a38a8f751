"""A promise's protection class covers what its lost servers cost, in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.costs.failures import FailureCost, failures_cost_seconds
from recovery.costs.protection_class import (
    LARGEST_SHARE_OF_COPYING,
    LEAST_SAFE_SECONDS,
    ProtectionClass,
    StateFigures,
    chosen_class,
    durable_class,
    failure_slack_seconds,
    lost_work_seconds,
    point_age_iterations,
)


def worst_work_lost(failures: int, replicas: int, durable: float, in_memory: float) -> float:
    """Return the most work that any order of losses costs. Each loss either leaves a copy, or takes the last
    one, for which the others must have been lost since all copies were made; between losses all copies may be
    restored."""

    def worst(left: int, copies: int) -> float:
        if not left:
            return 0.0
        made_again = max(replicas, copies)
        most = 0.0
        for there in {copies, made_again}:
            if there == 1:
                most = max(most, durable + worst(left - 1, made_again))
            else:
                most = max(most, min(in_memory, durable) + worst(left - 1, there - 1))
        return most

    return worst(failures, replicas)


@given(
    st.integers(0, 6), st.integers(1, 4), st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.floats(0.0, 500.0)
)  # fmt: skip
def test_failures_cost_as_much_as_the_worst_order_of_them(
    failures: int, replicas: int, durable: float, in_memory: float, repair: float
) -> None:
    cost = FailureCost(repair, 0.0, 0.0, durable)
    seconds = failures_cost_seconds(failures, cost, replicas=replicas, lost_in_memory_seconds=in_memory)
    worst = worst_work_lost(failures, replicas, durable, in_memory)
    assert seconds == pytest.approx(failures * repair + worst)


def test_a_state_never_stored_counts_on_durable_storage_only() -> None:
    assert chosen_class(None, 8, 60.0) == durable_class(60.0)
    assert chosen_class(StateFigures(0.1, 0.5), 8, 60.0) == ProtectionClass(2, LEAST_SAFE_SECONDS, 60.0)


def test_copies_in_memory_count_only_with_a_second_server() -> None:
    assert chosen_class(StateFigures(0.1, 0.5), 1, 60.0) == durable_class(60.0)


def test_the_age_of_points_is_interval_copying_and_a_vote() -> None:
    """A point that is sent over an iteration counts at its end."""
    assert point_age_iterations(1, 1, 62.0, 1.76, 0.0) == 3.0
    assert point_age_iterations(1, 1, 1.0, 2.5, 0.5) == 5.0, "copying takes longer than its iterations"


@given(st.one_of(st.none(), st.floats(0.01, 1e4)), st.floats(0.0, 2.0), st.floats(0.0, 70.0))
def test_measured_points_never_cost_a_promise_more(seen: float | None, copy: float, storing: float) -> None:
    usual = chosen_class(StateFigures(copy, storing), 2, 60.0)
    measured = chosen_class(StateFigures(copy, storing, seen), 2, 60.0)
    assert measured.safe_seconds <= usual.safe_seconds
    assert measured.safe_seconds >= min(60.0, storing, LARGEST_SHARE_OF_COPYING * copy)
    if seen is None:
        assert measured == usual


def test_more_copies_survive_more_losses_and_rarer_points_lose_more() -> None:
    figures = StateFigures(0.1, 0.5)

    def slack(**asked: float) -> float:
        chosen = chosen_class(figures, 4, 60.0, **asked)  # type: ignore[arg-type]
        return failure_slack_seconds(
            2, chosen, repair_seconds=(60.0, 10.0, 10.0), storing_seconds=0.5, iteration_seconds=1.0
        )

    assert slack(replicas=3) < slack(replicas=2) < slack(replicas=1)
    assert slack(points_seconds=10.0) == slack(), "the bound is no younger than that anyway"
    assert slack(points_seconds=40.0) > slack()
    assert chosen_class(figures, 4, 60.0, points_seconds=90.0) == durable_class(60.0)
    assert chosen_class(figures, 2, 60.0, replicas=3).replicas == 2, "as many as have room"


def test_storing_without_copies_takes_at_most_a_fiftieth_of_time() -> None:
    assert chosen_class(StateFigures(0.8, 0.5), 2, 60.0).safe_seconds == 40.0
    assert chosen_class(StateFigures(0.1, 22.0), 2, 60.0).safe_seconds == 22.0
    assert chosen_class(StateFigures(2.0, 0.5), 2, 60.0) == durable_class(60.0), "it would be worth nothing"


@given(
    st.integers(0, 4), st.floats(0.0, 5.0), st.floats(0.0, 100.0), st.integers(0, 3), st.floats(0.0, 60.0),
    st.floats(0.0, 100.0),
)  # fmt: skip
def test_a_jobs_slack_is_never_below_what_its_class_costs(
    failures: int, copy: float, storing: float, servers: int, iteration: float, repair: float
) -> None:
    """Relying on memory never needs more slack than relying on durable states."""
    chosen = chosen_class(StateFigures(copy, storing), servers, 60.0)
    measured = {"storing_seconds": storing, "iteration_seconds": iteration}

    def slack(protection: ProtectionClass) -> float:
        return failure_slack_seconds(failures, protection, repair_seconds=(repair, 0.0, 0.0), **measured)

    durable = lost_work_seconds(60.0, storing, iteration)
    safe = lost_work_seconds(chosen.safe_seconds, storing, iteration)
    worst = worst_work_lost(failures, chosen.replicas, durable, safe)
    assert slack(chosen) == pytest.approx(failures * repair + worst)
    assert slack(chosen) <= slack(durable_class(60.0)) + 1e-9


@pytest.mark.parametrize(("replicas", "safe", "durable"), [(0, 1.0, 2.0), (2, 3.0, 2.0), (1, 0.0, 1.0)])
def test_an_inconsistent_class_is_refused(replicas: int, safe: float, durable: float) -> None:
    with pytest.raises(ValueError, match="no protection"):
        ProtectionClass(replicas, safe, durable)
