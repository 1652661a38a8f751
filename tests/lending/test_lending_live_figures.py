"""Sums of the live lending benchmark: hours lent and used, and reclaims made before they were needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lending.figures import away_from_home, lent_seconds, union_seconds, was_needed
from lending.core.lending_rule import LendingRule

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
Spans = list[tuple[int, int]]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_two_generations_that_hand_over_on_a_server_use_it_once() -> None:
    spans = [(at(10), at(30)), (at(25), at(40)), (at(90), at(200))]
    assert union_seconds(spans, at(0), at(100)) == 40
    assert union_seconds(spans, at(20), at(100)) == 30


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))), st.integers(0, 60), st.integers(0, 60))
def test_used_seconds_are_those_that_any_span_covers(spans: Spans, since: int, until: int) -> None:
    covered = {second for begin, end in spans for second in range(begin, end)}
    used = union_seconds([(at(begin), at(end)) for begin, end in spans], at(since), at(until))
    assert used == len(covered & set(range(since, until)))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5))), st.integers(0, 60), st.integers(0, 60))
def test_lent_seconds_count_every_server_that_is_away(changes: Spans, since: int, until: int) -> None:
    changes.sort(key=lambda change: change[0])
    away = [0] * 61
    for second, count in changes:
        away[second:] = [count] * (61 - second)
    lent = lent_seconds([(at(second), count) for second, count in changes], at(since), at(until))
    assert lent == sum(away[since:until])


def test_servers_on_their_way_home_are_still_away() -> None:
    event = {"happened_at": NOON.isoformat(), "on_loan": 2, "reclaiming": 1}
    assert away_from_home([event]) == [(NOON, 3)]


@pytest.mark.parametrize(("usage", "needed"), [(0.4, False), (0.6, True)])
def test_a_reclaim_was_needed_where_the_next_sample_asks_for_servers(usage: float, needed: bool) -> None:
    order: dict[str, Any] = {"created_at": at(301).isoformat()}
    samples = [
        {"period_ends_at": at(300).isoformat(), "usage": 0.9},
        {"period_ends_at": at(600).isoformat(), "usage": usage},
    ]
    events = [
        {"happened_at": at(0).isoformat(), "on_loan": 5},
        {"happened_at": at(302).isoformat(), "on_loan": 0},
    ]
    assert was_needed(order, samples, events, LendingRule(10, 0.0)) is needed
