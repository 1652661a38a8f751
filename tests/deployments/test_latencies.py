"""Histograms of latencies: percentiles within a bucket's width, and sums over servers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from punctual.protocol.latencies import (
    LATENCY_BOUNDS,
    LATENCY_BUCKETS,
    LATENCY_GROWTH,
    latency_bucket,
    latency_percentile,
)


def counted(latencies: list[float]) -> list[int]:
    counts = [0] * LATENCY_BUCKETS
    for seconds in latencies:
        counts[latency_bucket(seconds)] += 1
    return counts


@given(
    st.lists(st.floats(LATENCY_BOUNDS[1], LATENCY_BOUNDS[-1]), min_size=1, max_size=200), st.floats(0.01, 1.0)
)
def test_a_percentile_is_within_a_bucket_of_the_exact_one(latencies: list[float], share: float) -> None:
    exact = float(np.quantile(latencies, share, method="inverted_cdf"))
    percentile = latency_percentile(counted(latencies), share)
    assert percentile is not None
    assert exact / LATENCY_GROWTH * 0.999 <= percentile <= exact * LATENCY_GROWTH * 1.001


def test_the_sum_of_two_servers_has_percentiles() -> None:
    quick, slow = counted([0.01] * 99), counted([1.0])
    both = [a + b for a, b in zip(quick, slow, strict=True)]
    p50, p99, most = (latency_percentile(both, share) or 0.0 for share in (0.5, 0.99, 1.0))
    assert 0.0 < p50 < p99 < 0.0125
    assert 0.9 < most < 1.2


def test_no_requests_have_no_percentile() -> None:
    assert latency_percentile([0] * LATENCY_BUCKETS, 0.5) is None
    assert latency_percentile([], 0.5) is None


def test_the_last_bucket_counts_the_longest_latencies() -> None:
    assert latency_bucket(1e9) == LATENCY_BUCKETS - 1
    assert latency_percentile(counted([1e9]), 0.5) == LATENCY_BOUNDS[-1]


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        latency_percentile([1], share)
