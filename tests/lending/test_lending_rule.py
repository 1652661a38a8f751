"""What the inference cluster lends, asks back and lacks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lending.core.lending_rule import LendingRule
from lending.core.replay import follow
from lending.core.rule_over_time import shortfalls, targets

PUBLISHED = LendingRule(servers=520)

shares = st.floats(0.0, 1.0)
rules = st.builds(LendingRule, st.integers(0, 600), st.floats(0.0, 0.3), st.floats(0.0, 0.1))


@pytest.mark.parametrize(
    ("usage", "forecast", "need", "target"),
    [(0.42, 0.45, 234, 275), (0.60, 0.55, 312, 197), (0.95, 0.97, 505, 4), (0.99, 1.00, 520, 0)],
)
def test_v14_loan_target(usage: float, forecast: float, need: int, target: int) -> None:
    assert PUBLISHED.reserve == 11
    assert PUBLISHED.need(usage, forecast) == need
    assert PUBLISHED.target(usage, forecast) == target
    assert targets(PUBLISHED, [usage], [forecast]).tolist() == [target]


@pytest.mark.parametrize(("on_loan", "lend", "reclaim"), [(250, 25, 0), (300, 0, 25), (275, 0, 0)])
def test_v14_what_is_lent_or_asked_back(on_loan: int, lend: int, reclaim: int) -> None:
    decision = PUBLISHED.decide(0.42, 0.45, on_loan=on_loan)
    assert (decision.target, decision.lend, decision.reclaim) == (275, lend, reclaim)


def test_servers_being_returned_are_not_asked_back_again() -> None:
    decision = PUBLISHED.decide(0.42, 0.45, on_loan=300, being_returned=20)
    assert decision.reclaim == 5
    assert PUBLISHED.decide(0.42, 0.45, on_loan=300, being_returned=25).reclaim == 0


def test_servers_being_returned_are_not_lent() -> None:
    decision = PUBLISHED.decide(0.42, 0.45, on_loan=300, being_returned=50)
    assert (decision.lend, decision.reclaim) == (0, 0)
    assert PUBLISHED.decide(0.42, 0.45, on_loan=270, being_returned=50).lend == 5


def test_without_a_forecast_usage_decides() -> None:
    assert PUBLISHED.target(0.60) == PUBLISHED.target(0.60, 0.10) == 197
    assert targets(PUBLISHED, [0.60], [np.nan]).tolist() == [197]


def test_a_forecast_beyond_all_gpus_asks_for_all_servers() -> None:
    assert PUBLISHED.need(0.5, 1.3) == 520
    assert PUBLISHED.need(0.5, -0.2) == 260


def test_a_margin_on_the_forecast_keeps_more_at_home() -> None:
    assert LendingRule(100, 0.0, forecast_margin_fraction=0.05).target(0.3, 0.5) == 45
    assert LendingRule(100, 0.0, forecast_margin_fraction=0.05).target(0.6, 0.5) == 40


def test_shortfall_is_what_usage_needs_beyond_what_is_at_home() -> None:
    assert PUBLISHED.shortfall(0.60, on_loan=208) == 0
    assert PUBLISHED.shortfall(0.60, on_loan=230) == 22
    assert shortfalls(PUBLISHED, [0.60, 0.60], [208, 230]).tolist() == [0, 22]


@pytest.mark.parametrize("usage", [-0.01, 1.01, float("nan")])
def test_usage_that_is_no_share_is_refused(usage: float) -> None:
    for ask in (PUBLISHED.need, PUBLISHED.target, lambda value: targets(PUBLISHED, [value])):
        with pytest.raises(ValueError, match="share of GPUs"):
            ask(usage)


def test_impossible_clusters_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot have -1 servers"):
        LendingRule(-1)
    with pytest.raises(ValueError, match="headroom_fraction"):
        LendingRule(5, headroom_fraction=2.0)
    with pytest.raises(ValueError, match="being returned"):
        LendingRule(5).decide(0.5, on_loan=2, being_returned=3)
    with pytest.raises(ValueError, match="being returned"):
        LendingRule(5).decide(0.5, on_loan=6)
    with pytest.raises(ValueError, match="leave it out"):
        LendingRule(5).need(0.5, float("nan"))


@given(rules, shares, shares, st.data())
def test_the_reserve_is_never_lent(
    rule: LendingRule, usage: float, forecast: float, data: st.DataObject
) -> None:
    on_loan = data.draw(st.integers(0, rule.servers))
    returning = data.draw(st.integers(0, on_loan))
    decision = rule.decide(usage, forecast, on_loan=on_loan, being_returned=returning)
    assert 0 <= decision.lend <= rule.servers - on_loan
    assert 0 <= decision.reclaim <= on_loan - returning
    assert not (decision.lend and decision.reclaim)
    if decision.lend:
        at_home = rule.servers - on_loan - decision.lend
        assert at_home >= decision.need + rule.reserve
    assert decision.target <= max(0, rule.servers - rule.reserve)


@given(rules, shares, shares, st.data())
def test_moving_to_the_target_leaves_nothing_to_move(
    rule: LendingRule, usage: float, forecast: float, data: st.DataObject
) -> None:
    on_loan = data.draw(st.integers(0, rule.servers))
    first = rule.decide(usage, forecast, on_loan=on_loan)
    moved = on_loan + first.lend - first.reclaim
    assert moved == first.target
    again = rule.decide(usage, forecast, on_loan=moved)
    assert (again.lend, again.reclaim) == (0, 0)
    # While servers are on their way, neither are they asked back twice.
    waiting = rule.decide(usage, forecast, on_loan=on_loan + first.lend, being_returned=first.reclaim)
    assert (waiting.lend, waiting.reclaim) == (0, 0)


@given(rules, shares, shares, shares)
def test_more_usage_never_lends_more(rule: LendingRule, usage: float, other: float, forecast: float) -> None:
    less, more = sorted((usage, other))
    assert rule.target(more, forecast) <= rule.target(less, forecast)
    assert rule.target(forecast, more) <= rule.target(forecast, less)
    assert rule.target(usage, forecast) <= rule.target(usage)


@given(rules, st.lists(st.tuples(shares, st.one_of(st.none(), shares)), max_size=20), st.data())
def test_many_at_once_are_as_one_by_one(
    rule: LendingRule, pairs: list[tuple[float, float | None]], data: st.DataObject
) -> None:
    usage = [pair[0] for pair in pairs]
    forecasts = [np.nan if pair[1] is None else pair[1] for pair in pairs]
    on_loan = [data.draw(st.integers(0, rule.servers)) for _ in pairs]
    assert targets(rule, usage, forecasts).tolist() == [rule.target(*pair) for pair in pairs]
    assert shortfalls(rule, usage, on_loan).tolist() == [
        rule.shortfall(share, away) for share, away in zip(usage, on_loan, strict=True)
    ]


@given(rules, st.lists(st.tuples(shares, shares), min_size=1, max_size=30), st.integers(0, 3))
def test_a_history_follows_the_rule_at_every_instant(
    rule: LendingRule, pairs: list[tuple[float, float]], periods_to_return: int
) -> None:
    usage, forecasts = (np.array(column) for column in zip(*pairs, strict=True))
    history = follow(rule, usage, forecasts, periods_to_return=periods_to_return)
    for instant, (share, expected) in enumerate(pairs):
        decision = rule.decide(
            share,
            expected,
            on_loan=int(history.on_loan[instant]),
            being_returned=int(history.being_returned[instant]),
        )
        assert (decision.lend, decision.reclaim) == (history.lent[instant], history.reclaimed[instant])
        assert decision.shortfall == history.shortfall[instant]
    if len(pairs) > 1 + periods_to_return:
        # What was asked back is home after that many periods.
        back = np.cumsum(history.reclaimed)[: -1 - periods_to_return]
        sent = np.cumsum(history.lent)
        assert (history.on_loan[1 + periods_to_return :] == sent[periods_to_return:-1] - back).all()


def test_a_history_needs_forecasts_for_every_sample() -> None:
    with pytest.raises(ValueError, match="1 forecasts do not fit 2 samples"):
        follow(PUBLISHED, [0.5, 0.6], [0.5])
    with pytest.raises(ValueError, match="before they are asked for"):
        follow(PUBLISHED, [0.5], periods_to_return=-1)


def test_server_is_lent_only_if_usage_may_rise_by_the_hysteresis() -> None:
    """Without it 0.49 lends the second of two servers and 0.51 asks it back."""
    plain, steady = LendingRule(2, 0.0), LendingRule(2, 0.0, hysteresis_fraction=0.05)
    assert plain.decide(0.49, on_loan=0).lend == 1
    assert steady.decide(0.49, on_loan=0).lend == 0
    assert steady.decide(0.44, on_loan=0).lend == 1
    assert steady.decide(0.49, on_loan=1).reclaim == 0, "what is on loan stays until it is needed"
    assert steady.decide(0.51, on_loan=1).reclaim == 1


def test_recent_peaks_limit_loans_and_settled_loans_limit_reclaims() -> None:
    rule = LendingRule(10, 0.0)
    assert rule.decide(0.2, on_loan=2, recent_peak=0.65).lend == 1
    assert rule.decide(0.2, 0.6, on_loan=8).reclaim == 4
    assert rule.decide(0.2, 0.6, on_loan=8, settled=1).reclaim == 1
    assert rule.decide(0.55, 0.9, on_loan=8, settled=0).reclaim == 4, "measured usage takes what it needs"


wobbles = st.lists(st.floats(-1.0, 1.0), min_size=5, max_size=60)


@given(st.integers(1, 60), st.floats(0.2, 0.8), st.floats(0.01, 0.1), wobbles)
def test_usage_within_the_hysteresis_never_reclaims_a_lent_server(
    servers: int, middle: float, hysteresis: float, wobbles: list[float]
) -> None:
    usage = middle + hysteresis * 0.499 * np.array(wobbles)
    moves = follow(LendingRule(servers, 0.0, 0.0, hysteresis), usage)
    lent_before = np.cumsum(moves.lent) - moves.lent
    # Nothing comes back that was lent in such usage.
    assert not (moves.reclaimed > 0)[lent_before > 0].any()


@given(st.integers(1, 60), st.integers(1, 8), st.lists(st.tuples(shares, shares), min_size=3, max_size=60))
def test_hold_delays_loans_and_reclaims_that_usage_does_not_need(
    servers: int, hold: int, samples: list[tuple[float, float]]
) -> None:
    usage, forecasts = np.array(samples).T
    rule = LendingRule(servers, 0.0)
    moves = follow(rule, usage, forecasts, hold_periods=hold)
    for instant in np.flatnonzero(moves.reclaimed):
        after = slice(instant + 1, instant + 1 + hold)
        assert (moves.on_loan[after] + moves.lent[after] <= moves.on_loan[instant]).all()
    needed = targets(rule, usage)
    for instant in np.flatnonzero(moves.reclaimed):
        fresh = moves.lent[max(0, instant - hold) : instant].sum()
        staying = moves.on_loan[instant]
        assert moves.reclaimed[instant] <= max(staying - needed[instant], staying - fresh, 0)


@given(rules, st.lists(st.tuples(shares, shares), min_size=1, max_size=30))
def test_without_hysteresis_and_least_time_it_is_the_published_rule(
    rule: LendingRule, samples: list[tuple[float, float]]
) -> None:
    usage, forecasts = np.array(samples).T
    moves = follow(rule, usage, forecasts)
    allowed = targets(rule, usage, forecasts)
    assert (moves.on_loan + moves.lent - moves.reclaimed == allowed).all()


@pytest.mark.parametrize(
    ("measured", "expected", "peak"),
    [
        (None, None, 0.0),
        (0.4, None, 0.4),
        (0.4, 0.3, 0.4),
        (0.4, 0.38, 0.43),
        (None, 0.2, 0.25),
        (0.9, 0.99, 1.0),
    ],
)
def test_recent_peak_is_measured_or_expected_usage_with_margin(
    measured: float | None, expected: float | None, peak: float
) -> None:
    rule = LendingRule(10, forecast_margin_fraction=0.05)
    assert rule.recent_peak(measured, expected) == pytest.approx(peak)
