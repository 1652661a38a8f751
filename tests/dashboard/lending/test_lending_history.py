"""Adding up the history of an inference cluster: servers over time, borrowed time, usage of both clusters,
and reasons in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.figures.cluster import combined_usage as combined_figure
from dashboard.figures.cluster import inference_usage, lending_servers
from lending.core.history import (
    CombinedPoint,
    InferenceSide,
    MoveKind,
    ServerCounts,
    ServerMove,
    ServerStay,
    Span,
    TrainingPoint,
    UsagePoint,
    borrowed_spans,
    combined_usage,
    condensed,
    seconds_in,
    server_steps,
)
from lending.selectors.history import ForecastPoint, LendingCounters, UsageHistory
from lending.selectors.reclaim_explanation import why_chosen

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
ONE_PM = NOON + timedelta(hours=1)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def move(minutes: float, kind: str, servers: str, on_loan: int, reclaiming: int = 0) -> ServerMove:
    return ServerMove(at(minutes), MoveKind(kind), tuple(servers.split()), on_loan, reclaiming)


LENT_AND_BACK = [
    move(10, "lent", "a b", 2),
    move(30, "asked_back", "a", 1, 1),
    move(31, "returned", "a", 1),
]


def test_servers_are_counted_on_one_whitelist_at_every_moment() -> None:
    members = [ServerStay(at(-60))] * 3
    steps = server_steps([ServerStay(at(-60))], members, LENT_AND_BACK, NOON, ONE_PM)
    counts = [
        (step.at, step.training, step.on_loan, step.reclaiming, step.inference, step.training_whitelist)
        for step in steps
    ]
    assert counts == [
        (NOON, 1, 0, 0, 3, 1),
        (at(10), 1, 2, 0, 1, 3),
        (at(30), 1, 1, 1, 1, 3),
        (at(31), 1, 1, 0, 2, 2),
        (ONE_PM, 1, 1, 0, 2, 2),
    ]


def test_moves_before_the_window_and_joins_within_it_are_counted() -> None:
    members = [ServerStay(at(-60)), ServerStay(at(20)), ServerStay(at(-60), at(40))]
    steps = server_steps([], members, [move(-5, "lent", "a", 1)], NOON, ONE_PM)
    assert [(step.at, step.on_loan, step.inference) for step in steps] == [
        (NOON, 1, 1),
        (at(20), 1, 2),
        (at(40), 1, 1),
        (ONE_PM, 1, 1),
    ]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4), st.integers(0, 4)), max_size=8))
def test_no_server_is_lost_or_counted_twice(moves: list[tuple[int, int, int]]) -> None:
    ordered = [move(minutes, "lent", "", lent, back) for minutes, lent, back in sorted(moves)]
    steps = server_steps([ServerStay(at(-1))] * 2, [ServerStay(at(-1))] * 8, ordered, NOON, ONE_PM)
    assert all(step.training_whitelist + step.inference == 10 for step in steps)
    assert [step.at for step in steps] == sorted({step.at for step in steps})


def test_borrowed_time_lasts_from_the_loan_until_the_server_is_home() -> None:
    spans = borrowed_spans(LENT_AND_BACK, {"b"}, NOON, ONE_PM)
    assert spans == [Span("a", at(10), at(31)), Span("b", at(10), ONE_PM)]


def test_a_server_away_before_the_window_counts_from_its_start() -> None:
    moves = [move(5, "asked_back", "a", 1, 1), move(6, "returned", "a c", 1)]
    spans = borrowed_spans(moves, {"b"}, NOON, ONE_PM)
    assert spans == [Span("a", NOON, at(6)), Span("c", NOON, at(6)), Span("b", NOON, ONE_PM)]


def test_a_server_lent_again_has_two_spans() -> None:
    moves = [move(1, "lent", "a", 1), move(2, "returned", "a", 0), move(8, "lent", "a", 1)]
    assert seconds_in(borrowed_spans(moves, {"a"}, NOON, at(10))) == 180


def test_overlapping_spans_of_one_gpu_count_once() -> None:
    spans = [
        Span("1", at(0), at(10)),
        Span("1", at(5), at(12)),
        Span("1", at(6), at(7)),
        Span("2", at(0), at(1)),
    ]
    assert seconds_in(spans) == 13 * 60


def side(usage: list[UsagePoint], on_loan: int = 0) -> InferenceSide:
    steps = [ServerCounts(NOON, 1, on_loan, 0, 4 - on_loan)]
    return InferenceSide(4, 16, usage, 300.0, steps)


def test_combined_usage_is_of_all_gpus_of_both_clusters() -> None:
    points = combined_usage([TrainingPoint(at(3), 6, 12)], side([UsagePoint(at(5), 0.5)], on_loan=1))
    (point,) = points
    # Twelve GPUs on the training side, four of them borrowed, and twelve at home, of which eight serve.
    assert (point.serving_gpus, point.gpus) == (8, 24)
    assert point.combined_share == pytest.approx(14 / 24)
    assert point.training_share == 0.5


def test_servers_on_loan_serve_no_inference() -> None:
    (point,) = combined_usage([TrainingPoint(at(3), 12, 12)], side([UsagePoint(at(5), 0.9)], on_loan=3))
    assert point.serving_gpus == 4


def test_a_moment_without_known_usage_is_left_out() -> None:
    usage = [UsagePoint(at(5), 0.5), UsagePoint(at(40), 0.7)]
    training = [TrainingPoint(at(minutes), 1, 2) for minutes in (-3, 1, 16, 25, 36, 60)]
    assert [point.at for point in combined_usage(training, side(usage))] == [at(1), at(16), at(36)]


def test_a_table_is_condensed_to_means() -> None:
    points = [CombinedPoint(at(minute), minute, 10, 0, 20) for minute in range(5)]
    rows = condensed(points, 2)
    assert [(row.at, row.training_busy_gpus) for row in rows] == [(at(0), 1.0), (at(3), 3.5)]
    assert condensed([], 2) == []


def test_preemptions_per_server_are_unknown_before_a_server_came_back() -> None:
    assert LendingCounters(0, 0, 0, 0, None, None, 0, 0).preemptions_per_server is None
    assert LendingCounters(1, 2, 2, 0, 9.0, 12.0, 4, 1).preemptions_per_server == 0.25


@pytest.mark.parametrize(
    ("method", "entry", "words"),
    [
        ("lyra", {"group": "idle", "cost": 0.0}, "Idle: nothing ran"),
        ("lyra", {"group": "flexible", "cost": 31.0}, "go on with fewer GPUs, which lose 31 s by it"),
        ("lyra", {"group": "flexible", "cost": None}, "cannot go on at all"),
        ("improved", {"group": "preemption", "cost": 1.5, "newly_preempted": 2, "excess_gpus": 3},
         "Preemption cost 1.5 when it was picked; 2 jobs stopped; frees 3 GPUs on servers that stay."),
        ("improved", {"group": "preemption", "cost": 0.5, "newly_preempted": 0}, "no further job stopped"),
        ("scf", {"group": "preemption", "cost": 2.0, "newly_preempted": 1}, "Fewest jobs: 2 on it"),
        ("random", {"group": "idle", "cost": 0.0}, "Drawn at random"),
    ],
)  # fmt: skip
def test_the_reason_for_a_server_is_what_was_recorded(method: str, entry: dict[str, Any], words: str) -> None:
    assert words in why_chosen(method, entry)


def history(**changes: Any) -> UsageHistory:
    values: dict[str, Any] = {
        "samples": [UsagePoint(at(5), 0.5), UsagePoint(at(10), 0.9, 2, 1, 4.0)],
        "forecasts": [ForecastPoint(at(15), 0.85, "lstm")],
        "period_seconds": 300.0, "periods_per_point": 1, "servers": 10, "gpus": 40, "emulated_gpus": 0,
        "reserve": 1, **changes,
    }  # fmt: skip
    return UsageHistory(**values)


def test_shortfalls_are_marked_and_the_headroom_line_is_drawn() -> None:
    drawn = inference_usage.figure(history())
    assert drawn is not None
    traces = {trace.name: trace for trace in drawn.data}
    assert list(traces["Shortfall"].x) == [at(10)]
    assert traces["Shortfall"].customdata[0] == "2 servers missing at home (1 as the inference side saw it)"
    assert drawn.layout.shapes[0].y0 == pytest.approx(0.9)
    assert list(traces["Forecast"].customdata) == ["lstm"]
    assert inference_usage.figure(history(samples=[], forecasts=[])) is None
    assert "1 of 10 servers never lent" in drawn.layout.annotations[0].text


def test_stacked_servers_add_up_and_the_whitelist_line_is_drawn() -> None:
    steps = [ServerCounts(NOON, 2, 3, 1, 4), ServerCounts(at(9), 2, 0, 0, 8)]
    drawn = lending_servers.figure(steps)
    assert drawn is not None
    stacked = [trace for trace in drawn.data if trace.stackgroup]
    assert [sum(trace.y[place] for trace in stacked) for place in (0, 1)] == [10, 10]
    assert list(drawn.data[-1].y) == [6, 2]
    assert lending_servers.figure([]) is None


def test_combined_usage_is_drawn_beside_training_alone() -> None:
    drawn = combined_figure.figure([CombinedPoint(NOON, 6, 12, 8, 24)])
    assert drawn is not None
    assert [trace.name for trace in drawn.data] == ["Both clusters", "Training alone"]
    assert drawn.layout.yaxis.tickformat == ".0%"
    assert combined_figure.figure([]) is None
