"""Traffic planning: idle spans, the partition (G4), pipelining (G5, G10) and the modes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.traffic.idle_spans import StampedIteration, idle_profile, threshold_seconds
from recovery.traffic.link import Link, SubBuffers, received_through
from recovery.traffic.modes import IterationTraffic, TrafficMode, compare, iteration_under
from recovery.traffic.partition import partition
from recovery.traffic.transmission import transmit

MB = 1_000_000
#: G4: 1 MB a millisecond, a startup of a millisecond, four sub-buffers of 2 MB. Times here are milliseconds.
G4_LINK = Link(MB, 1.0)
G4_BUFFERS = SubBuffers(8 * MB, 4)


def g4(spans, megabytes, replicas):
    return partition(spans, megabytes * MB, replicas, G4_LINK, G4_BUFFERS, 0.8)


def test_g4_two_replicas():
    plan = g4((5, 2, 7, 1, 20), 10, 2)
    assert [(chunk.span + 1, chunk.size / MB) for chunk in plan.chunks] == [
        (1, 2.0), (2, 0.6), (3, 2.0), (3, 1.6), (5, 2.0), (5, 1.8),
    ]  # fmt: skip
    assert plan.extension_seconds == 0.0


def test_g4_three_replicas():
    plan = g4((5, 2, 7, 1, 20), 6, 3)
    assert [(chunk.replica, chunk.span + 1, chunk.size / MB) for chunk in plan.chunks] == [
        (0, 1, 2.0), (0, 2, 0.6), (0, 3, 2.0), (0, 3, 1.4), (1, 5, 2.0), (1, 5, 2.0), (1, 5, 2.0),
    ]  # fmt: skip


def test_g4_a_short_last_span_lengthens_the_iteration():
    assert g4((5, 2, 7, 1, 2), 20, 2).extension_seconds == pytest.approx(18.8)


def test_one_replica_sends_nothing():
    assert g4((5, 2), 10, 1).chunks == ()
    assert g4((5, 2), 10, 1).extension_seconds == 0.0


def test_one_span_blocks_and_chunks_may_not_divide_the_checkpoint():
    plan = g4((0,), 5, 2)
    assert [chunk.size / MB for chunk in plan.chunks] == [2.0, 2.0, 1.0]
    assert plan.extension_seconds == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("spans", "replicas", "share"), [((), 2, 0.8), ((-1.0,), 2, 0.8), ((1.0,), 0, 0.8), ((1.0,), 2, 0.0)]
)
def test_impossible_traffic_is_refused(spans, replicas, share):
    with pytest.raises(ValueError, match="at least|usable_share"):
        partition(spans, MB, replicas, G4_LINK, G4_BUFFERS, share)


def test_invalid_links_and_buffers_are_refused():
    with pytest.raises(ValueError, match="positive rate"):
        Link(0.0)
    with pytest.raises(ValueError, match="do not make 4 sub-buffers"):
        SubBuffers(3, 4)


@given(
    spans=st.lists(st.floats(0.0, 0.5), min_size=1, max_size=12),
    size=st.integers(0, 40 * MB),
    replicas=st.integers(1, 4),
    rate=st.floats(10 * MB, 1000 * MB),
    startup=st.floats(0.0, 0.05),
    count=st.integers(1, 8),
    share=st.floats(0.05, 1.0),
)
def test_a_plan_carries_everything_within_its_bounds(spans, size, replicas, rate, startup, count, share):
    link, buffers = Link(rate, startup), SubBuffers(32 * MB, count)
    plan = partition(spans, size, replicas, link, buffers, share)
    assert plan.bytes == (replicas - 1) * size
    expected = [0] * (replicas - 1)
    for chunk in plan.chunks:
        assert 0 < chunk.size <= buffers.chunk_bytes
        assert chunk.offset == expected[chunk.replica]
        expected[chunk.replica] += chunk.size
    assert [chunk.span for chunk in plan.chunks] == sorted(chunk.span for chunk in plan.chunks)
    for number, span in enumerate(spans[:-1]):
        used = sum(link.seconds(chunk.size) for chunk in plan.chunks if chunk.span == number)
        assert used <= share * span + 1e-9
    in_last = sum(link.seconds(chunk.size) for chunk in plan.chunks if chunk.span == len(spans) - 1)
    assert plan.extension_seconds == pytest.approx(max(0.0, in_last - spans[-1]))


# Pipelining -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "buffers", "network_ends", "ends"),
    [
        (1, 1, 480, 512),
        (1, 2, 256, 288),
        (1, 4, 256, 288),
        (2, 1, 352, 384),
        (2, 2, 224, 272),
        (2, 4, 160, 272),
    ],
)
def test_g5_eight_chunks_through_sub_buffers(network, buffers, network_ends, ends):
    sent = transmit([32 * MB] * 8, Link(network * MB), 1 * MB, buffers)
    assert (sent.network_seconds, sent.seconds) == (network_ends, ends)


def test_g10_chunks_of_gpt2_100b():
    """9.375 GB a GPU in chunks of 32 MiB at 50 Gbps: 280 chunks of 5.4 ms."""
    chunk = 32 * 2**20
    plan = partition((100.0,), 9_375 * MB, 2, Link(6.25e9), SubBuffers(4 * chunk, 4))
    assert len(plan.chunks) == 280
    assert Link(6.25e9).seconds(chunk) * 1000 == pytest.approx(5.4, abs=0.05)


@given(
    st.lists(st.integers(1, 64 * MB), min_size=1, max_size=20), st.integers(1, 6),
    st.floats(MB, 100 * MB), st.floats(MB, 100 * MB), st.floats(0.0, 1.0),
)  # fmt: skip
def test_more_sub_buffers_are_never_slower_nor_hold_two_chunks(sizes, count, rate, copy, startup):
    link = Link(rate, startup)
    sent = transmit(sizes, link, copy, count)
    assert sent.seconds >= transmit(sizes, link, copy, count + 1).seconds - 1e-9
    for later in range(count, len(sizes)):
        began = sent.received_at[later] - link.seconds(sizes[later])
        assert began >= sent.copied_at[later - count] - 1e-6


def test_two_buffers_hide_copies_that_are_no_slower_than_the_network():
    link = Link(10.0 * MB)
    assert received_through(link, 20.0 * MB, SubBuffers(4, 2)) == link
    assert received_through(link, 5.0 * MB, SubBuffers(4, 2)).bytes_per_second == 5.0 * MB
    assert received_through(link, 10.0 * MB, SubBuffers(4, 1)).bytes_per_second == pytest.approx(5.0 * MB)


# Idle spans -----------------------------------------------------------------------------------


def iteration(*gaps, transfer=0.1, at=50.0):
    """Return an iteration whose transfers take these times, with these gaps before, between and after
    them."""
    began, transfers = at, []
    for gap in gaps[:-1]:
        transfers.append((at + gap, at + gap + transfer))
        at += gap + transfer
    return StampedIteration(began, at + gaps[-1], tuple(transfers))


def test_a_span_is_the_least_of_its_place_after_the_warm_up():
    stamped = [iteration(9.0, 9.0, 9.0)] * 2 + [iteration(0.5, 0.30, 0.2), iteration(0.6, 0.33, 0.1)]
    profile = idle_profile(stamped, 0.01, warm_up=2)
    assert [span.seconds for span in profile.spans] == pytest.approx([0.5, 0.30, 0.1])
    assert profile.iteration_seconds == pytest.approx((1.2 + 1.23) / 2)
    assert profile.deviation == pytest.approx(0.1 / 0.15)
    assert profile.idle_seconds == pytest.approx(0.9)


def test_short_spans_are_left_out_but_the_last_stays():
    profile = idle_profile([iteration(0.5, 0.001, 0.3, 0.0)], 0.01, warm_up=0)
    assert [(span.place, round(span.seconds, 6)) for span in profile.spans] == [(0, 0.5), (2, 0.3), (3, 0.0)]


def test_transfers_that_overlap_leave_no_gap():
    stamped = StampedIteration(0.0, 10.0, ((1.0, 6.0), (2.0, 3.0), (7.0, 8.0)))
    profile = idle_profile([stamped], 0.5, warm_up=0)
    assert [(span.place, span.seconds) for span in profile.spans] == [(0, 1.0), (2, 1.0), (3, 2.0)]


def test_an_iteration_without_transfers_is_idle_throughout():
    profile = idle_profile([StampedIteration(1.0, 3.0, ())], 0.01, warm_up=0)
    assert [(span.place, span.seconds) for span in profile.spans] == [(0, 2.0)]


def test_the_threshold_is_five_startups_or_ten_milliseconds():
    assert threshold_seconds(0.001) == 0.010
    assert threshold_seconds(0.010) == pytest.approx(0.050)


@pytest.mark.parametrize(
    ("stamped", "message"),
    [
        ([iteration(1.0, 1.0)] * 8, "8 iterations leave none after 8 of warm-up"),
        ([iteration(1.0, 1.0)] * 9 + [iteration(1.0, 1.0, 1.0)], "iterations with 1 and 2 transfers"),
        ([StampedIteration(0.0, 1.0, ((0.5, 0.2),))] * 9, "run backwards"),
        ([StampedIteration(0.0, 1.0, ((0.5, 1.2),))] * 9, "outside of its iteration"),
        ([StampedIteration(2.0, 1.0, ())] * 9, "ends before it begins"),
    ],
)
def test_inconsistent_timestamps_are_refused(stamped, message):
    with pytest.raises(ValueError, match=message):
        idle_profile(stamped, 0.01)


# Modes ----------------------------------------------------------------------------------------


GPT2_40B = IterationTraffic(
    iteration_seconds=23.76,
    spans=(0.8, 1.6, 0.9, 0.7, 0.8),
    checkpoint_bytes=3_750 * MB,
    replicas=2,
    link=Link(1.5625e9),
    copy_bytes_per_second=1.5625e9,
)


def traffic(**changed: Any) -> IterationTraffic:
    """GPT-2 40B on p3dn for one GPU: 3.75 GB at an eighth of 100 Gbps; copies as fast as the network."""
    return replace(GPT2_40B, **changed)


def test_modes_rank_in_the_published_order():
    none, blocking, naive, without, gemini = compare(traffic())
    assert none.iteration_seconds == gemini.iteration_seconds == 23.76
    assert blocking.extension_seconds == pytest.approx(2.4)
    assert naive.out_of_memory
    assert naive.buffer_bytes == 2_500 * MB
    assert 0.0 < without.extension_seconds < blocking.extension_seconds
    assert gemini.buffer_bytes == 128 * MB


def test_naive_interleaving_runs_where_its_buffer_fits():
    outcome = iteration_under(TrafficMode.NAIVE, traffic(free_gpu_bytes=3_000 * MB))
    assert outcome.iteration_seconds == pytest.approx(23.76)


def test_slow_copies_lengthen_what_the_pipeline_cannot_hide():
    slow = traffic(copy_bytes_per_second=0.5e9)
    assert iteration_under(TrafficMode.GEMINI, slow).extension_seconds == pytest.approx(7.5 - 0.8 * 4.0 - 0.8)


@given(st.lists(st.floats(0.0, 1.6), min_size=1, max_size=8), st.integers(1, 3), st.floats(1e8, 1e10))
def test_gemini_beats_no_pipeline_which_beats_taking_turns(spans, replicas, copy):
    planned = traffic(spans=tuple(spans), replicas=replicas, copy_bytes_per_second=copy)
    gemini = iteration_under(TrafficMode.GEMINI, planned).extension_seconds
    without = iteration_under(TrafficMode.WITHOUT_PIPELINE, planned).extension_seconds
    turns = (replicas - 1) * planned.checkpoint_bytes * (1 / planned.link.bytes_per_second + 1 / copy)
    assert gemini <= without + 1e-6
    assert without <= turns + 1e-6
