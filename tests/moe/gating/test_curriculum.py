"""The order of samples: worked example W5, special cases, and invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from moe.gating.curriculum import Curriculum, SampleRecord, cosine_similarity, deal, order_samples

COSINE, MAGNITUDE = Curriculum.COSINE, Curriculum.MAGNITUDE


@st.composite
def records(draw: st.DrawFn) -> SampleRecord:
    shape = (draw(st.integers(0, 12)), draw(st.integers(1, 4)))
    tokens = draw(arrays.arrays(np.int64, shape, elements=st.integers(0, 6)))
    shares = draw(arrays.arrays(np.float64, shape, elements=st.sampled_from((0.0, 0.3, 0.5, 1.0))))
    return SampleRecord(tokens, np.floor(tokens * shares).astype(np.int64))


def five_samples() -> SampleRecord:
    """W5: d0 to d4."""
    lengths = np.array((10, 10, 10, 10, 20))
    shares = np.array(((0.2, 0.2, 0.2), (0.1, 0, 0.1), (0.5, 0.4, 0.6), (0, 0.3, 0), (0.1, 0.05, 0.1)))
    tokens = np.repeat(lengths[:, None], 3, axis=1)
    return SampleRecord(tokens, np.round(shares * tokens).astype(np.int64))


def order(record: SampleRecord, curriculum: Curriculum) -> list[int]:
    return order_samples(record, curriculum).tolist()


def test_w5_orders():
    record = five_samples()
    similarity = cosine_similarity(record.complexity, 1)
    assert similarity == pytest.approx([0.816497, 1.0, 0.886405, 0.0, 0.942809], abs=1e-6)
    assert order(record, COSINE) == [1, 4, 2, 0, 3]
    assert order(record, MAGNITUDE) == [1, 4, 3, 0, 2]


def test_sample_without_two_expert_tokens_orders_by_magnitude():
    record = five_samples()
    two = record.two_expert_tokens.copy()
    two[3] = 0
    record = SampleRecord(record.tokens, two)
    assert order(record, COSINE) == order(record, MAGNITUDE) == [3, 1, 4, 0, 2]


@pytest.mark.parametrize("curriculum", Curriculum)
def test_equal_single_and_no_samples_are_ordered(curriculum):
    assert order(SampleRecord(np.full((6, 2), 10), np.full((6, 2), 3)), curriculum) == list(range(6))
    assert order(SampleRecord(np.array([[10, 10]]), np.array([[1, 0]])), curriculum) == [0]
    assert order(SampleRecord(np.zeros((0, 2), int), np.zeros((0, 2), int)), curriculum) == []


def test_simpler_sample_is_first_among_equally_similar_ones():
    record = SampleRecord(np.full((4, 2), 10), np.array([[4, 4], [1, 1], [2, 2], [1, 1]]))
    assert order(record, COSINE) == [1, 3, 2, 0]


def test_anchor_has_the_fewest_tokens_not_the_smallest_share():
    record = SampleRecord(np.array([[100], [10]]), np.array([[5], [2]]))
    assert order(record, COSINE)[0] == 1


def test_each_layer_counts_its_own_tokens():
    """Encoder and decoder of one model see different numbers of tokens of a sample."""
    record = SampleRecord(np.array([[10, 100], [10, 2]]), np.array([[2, 10], [3, 1]]))
    assert record.complexity == pytest.approx(np.array([[0.2, 0.1], [0.3, 0.5]]))


@given(records(), st.sampled_from(Curriculum))
def test_order_is_a_permutation_with_unknown_samples_last(record, curriculum):
    ordered = order_samples(record, curriculum)
    assert sorted(ordered.tolist()) == list(range(len(record.tokens)))
    is_recorded = (record.tokens > 0).any(axis=1)[ordered]
    assert (np.diff(is_recorded.astype(int)) <= 0).all()
    assert (np.diff(ordered[~is_recorded]) > 0).all()
    known, shares = ordered[is_recorded], record.complexity
    counts = record.two_expert_tokens.sum(axis=1)
    if curriculum is COSINE and len(known) and counts[known].all():
        assert known[0] == min(known, key=lambda sample: (counts[sample], sample))
        assert (np.diff(cosine_similarity(shares[known], 0)) <= 1e-8).all()
    else:
        assert (np.diff(shares[known].sum(axis=1)) >= -1e-8).all()


@given(st.integers(0, 60), st.integers(1, 4), st.integers(1, 5))
def test_consecutive_samples_go_to_the_same_rank(samples, ranks, each):
    dealt = deal(np.arange(samples), ranks, each)
    assert dealt.shape == (samples // (ranks * each), ranks, each)
    assert dealt.reshape(-1).tolist() == list(range(dealt.size))


def test_wrong_records_and_deals_are_refused():
    with pytest.raises(ValueError, match="between 0 and the sample's tokens"):
        SampleRecord(np.array([[1]]), np.array([[2]]))
    with pytest.raises(ValueError, match=r"\(samples, layers\)"):
        SampleRecord(np.array([1]), np.array([1]))
    with pytest.raises(ValueError, match="ranks is 0"):
        deal(np.arange(3), 0, 1)
