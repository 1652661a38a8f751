"""Gate decisions: worked examples W1 and W2, and invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from moe.gating.gate import NO_EXPERT, Margin, decide, softmax

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
    has_two = decide(tokens(), threshold).has_two
    assert "".join("2" if two else "1" for two in has_two) == experts


def test_w1_margin_of_the_best_two_is_stricter():
    decision = decide(tokens(), 0.1, Margin.BEST_TWO)
    gaps = (0.066667, 0.5, 0.090909, 0.0, 0.166667, 0.125, 0.75)
    assert decision.margin == pytest.approx(gaps, abs=1e-6)
    assert decision.has_two.tolist() == [True, False, True, True, False, False, False]


def test_w2_logits():
    shares = softmax(np.array([[2.0, 1.5, 0.0, -1.0]]))
    assert shares[0] == pytest.approx((0.558144, 0.338531, 0.075537, 0.027788), abs=1e-6)
    assert decide(shares, 0.1).margin[0] == pytest.approx(0.219612, abs=1e-6)
    assert [decide(shares, threshold).has_two[0] for threshold in (0.1, 0.2, 0.3)] == [False, False, True]


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


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="shape must be"):
        decide(np.ones(3), 0.1)
    with pytest.raises(ValueError, match="threshold is nan"):
        decide(tokens(), float("nan"))
