"""Gate decisions, weights, balance loss and rows: worked examples W1 to W4, and invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from moe.gating.balance_loss import balance_loss, classical_balance_loss
from moe.gating.gate import NO_EXPERT, Margin, combine_weights, decide, softmax
from moe.gating.rows import build_rows, share_of_top2

TOKENS = {
    "a": (0.40, 0.35, 0.15, 0.10),
    "b": (0.60, 0.20, 0.15, 0.05),
    "c": (0.30, 0.20, 0.25, 0.25),
    "d": (0.25, 0.25, 0.25, 0.25),
    "e": (0.35, 0.25, 0.20, 0.20),
    "f": (0.45, 0.35, 0.10, 0.10),
    "g": (0.10, 0.70, 0.10, 0.10),
}
LOGITS = arrays.arrays(
    np.float64,
    st.tuples(st.integers(0, 12), st.integers(1, 6)),
    # Few values make ties common.
    elements=st.integers(-4, 4).map(lambda value: value / 2),
)
THRESHOLDS = st.sampled_from((-1.0, 0.0, 0.05, 0.1, 0.2, 0.4, 1.0)) | st.floats(-1, 2)


def tokens(names: str = "abcdefg") -> np.ndarray:
    return np.array([TOKENS[name] for name in names])


def decide_one(probabilities, threshold, margin):
    """The rule of one token, written as the specification states it."""
    ranked = sorted(range(len(probabilities)), key=lambda expert: (-probabilities[expert], expert))
    if len(ranked) == 1:
        return (ranked[0],)
    best, next_best = probabilities[ranked[0]], probabilities[ranked[1]]
    gap = best - next_best
    if margin is Margin.BEST_TWO:
        gap /= best + next_best
    return tuple(ranked[:2]) if gap <= threshold + 1e-6 else (ranked[0],)


def experts_of(decision):
    pairs = zip(decision.first.tolist(), decision.second.tolist(), strict=True)
    return [(first,) if second == NO_EXPERT else (first, second) for first, second in pairs]


def test_w1_decisions():
    decision = decide(tokens(), 0.1)
    assert experts_of(decision) == [(0, 1), (0,), (0, 2), (0, 1), (0, 1), (0, 1), (1,)]
    assert decision.margin == pytest.approx([0.05, 0.40, 0.05, 0.0, 0.10, 0.10, 0.60], abs=1e-6)


@pytest.mark.parametrize(
    ("threshold", "experts"),
    [
        (-1.0, "1111111"),
        (0.0, "1112111"),
        (0.05, "2122111"),
        (0.1, "2122221"),
        (0.2, "2122221"),
        (0.4, "2222221"),
        (1.0, "2222222"),
    ],
)
def test_w1_experts_by_threshold(threshold, experts):
    found = decide(tokens(), threshold).has_two
    assert "".join("2" if two else "1" for two in found) == experts


def test_w1_margin_of_the_best_two_is_stricter():
    decision = decide(tokens(), 0.1, Margin.BEST_TWO)
    gaps = (0.066667, 0.5, 0.090909, 0.0, 0.166667, 0.125, 0.75)
    assert decision.margin == pytest.approx(gaps, abs=1e-6)
    assert decision.has_two.tolist() == [True, False, True, True, False, False, False]


def test_w2_logits():
    found = softmax(np.array([[2.0, 1.5, 0.0, -1.0]]))
    assert found[0] == pytest.approx((0.558144, 0.338531, 0.075537, 0.027788), abs=1e-6)
    assert decide(found, 0.1).margin[0] == pytest.approx(0.219612, abs=1e-6)
    assert [decide(found, threshold).has_two[0] for threshold in (0.1, 0.2, 0.3)] == [False, False, True]


def test_w3_balance_loss():
    batch = tokens("abcdg")
    decision = decide(batch, 0.1)
    assert balance_loss(batch, decision) == pytest.approx(1.34, abs=1e-6)
    assert classical_balance_loss(batch, decision) == pytest.approx(1.328, abs=1e-6)
    assert decision.two_expert_share == pytest.approx(3 / 5)
    assert build_rows(decision, 4).counts.tolist() == [4, 3, 1, 0]


def test_w3_loss_is_zero_without_one_expert_tokens():
    batch = tokens("acd")
    assert balance_loss(batch, decide(batch, 0.1)) == 0.0


def test_w4_combination():
    outputs = np.array([[1.0, 0.0], [0.0, 2.0]])
    batch = tokens("ab")
    decision = decide(batch, 0.1)
    assert combine_weights(batch, decision) @ outputs == pytest.approx(np.array([[0.4, 0.7], [0.6, 0.0]]))
    renormalised = combine_weights(batch, decision, renormalise_pairs=True) @ outputs
    assert renormalised == pytest.approx(np.array([[0.533333, 0.933333], [0.6, 0.0]]), abs=1e-6)


@pytest.mark.parametrize("margin", Margin)
def test_rule_equals_the_scalar_rule_on_many_random_tokens(margin):
    batch = np.random.default_rng(3).dirichlet(np.full(8, 0.7), 100_000)
    ordered = np.sort(batch, axis=1)
    gap = ordered[:, -1] - ordered[:, -2]
    if margin is Margin.BEST_TWO:
        gap /= ordered[:, -1] + ordered[:, -2]
    decision = decide(batch, 0.1, margin)
    assert (decision.has_two == (gap <= 0.1 + 1e-6)).all()
    sample = slice(0, 100_000, 50)
    expected = [decide_one(token, 0.1, margin) for token in batch[sample].tolist()]
    assert experts_of(decide(batch[sample], 0.1, margin)) == expected


@given(LOGITS, THRESHOLDS, st.sampled_from(Margin))
def test_rule_equals_the_scalar_rule_with_ties(logits, threshold, margin):
    batch = softmax(logits)
    expected = [decide_one(token, threshold, margin) for token in batch.tolist()]
    assert experts_of(decide(batch, threshold, margin)) == expected


@given(LOGITS, THRESHOLDS, THRESHOLDS)
def test_higher_threshold_takes_no_expert_away(logits, one, other):
    fewer, more = (decide(softmax(logits), threshold).has_two for threshold in sorted((one, other)))
    assert (fewer <= more).all()


@given(LOGITS, THRESHOLDS, st.data())
def test_padding_changes_no_balance_loss(logits, threshold, data):
    batch = softmax(logits)
    counted = data.draw(arrays.arrays(np.bool_, len(batch)))
    loss = balance_loss(batch, decide(batch, threshold), counted)
    assert loss == pytest.approx(balance_loss(batch[counted], decide(batch[counted], threshold)))


def test_even_routing_has_a_balance_loss_of_one():
    batch = np.eye(4) * 0.6 + 0.1
    assert balance_loss(batch, decide(batch, 0.1)) == pytest.approx(1.0)


@given(LOGITS, THRESHOLDS)
def test_rows_are_all_choices_sorted_by_expert(logits, threshold):
    batch = softmax(logits)
    decision = decide(batch, threshold)
    rows = build_rows(decision, batch.shape[1])
    chosen = np.stack((decision.first, decision.second), axis=1)
    assert (chosen[rows.token, rows.choice] == rows.expert).all()
    pairs = list(zip(rows.expert.tolist(), rows.token.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    assert rows.counts.tolist() == [list(rows.expert).count(expert) for expert in range(batch.shape[1])]
    if len(batch):
        assert len(pairs) / (2 * len(batch)) == pytest.approx(share_of_top2(decision.two_expert_share))


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="shape must be"):
        decide(np.ones(3), 0.1)
    with pytest.raises(ValueError, match="threshold is nan"):
        decide(tokens(), float("nan"))
    with pytest.raises(ValueError, match="has expert 2; there are 2"):
        build_rows(decide(tokens(), 0.1), 2)
    with pytest.raises(ValueError, match="must have the same tokens"):
        balance_loss(tokens(), decide(tokens(), 0.1), np.ones(3, bool))
