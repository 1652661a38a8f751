"""Prefetch on two channels: vector V3, and an event simulator that uses no recurrence."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.moesys.prefetch import (
    LayerTimes,
    fetch_seconds,
    gather_seconds,
    predict_experts,
    two_channel_schedule,
)

#: Their sums are exact.
SECONDS = st.integers(0, 9).map(float)


def example() -> LayerTimes:
    return LayerTimes(np.full(4, 4.0), np.full(4, 1.0), np.array([3.0, 3.0, 6.0, 3.0]))


@st.composite
def layer_times(draw: st.DrawFn) -> LayerTimes:
    layers = draw(st.integers(1, 9))
    rows = (draw(st.lists(SECONDS, min_size=layers, max_size=layers)) for _ in range(3))
    return LayerTimes(*(np.array(row) for row in rows))


def simulated(times: LayerTimes, lookahead: int) -> float:
    """Return the time by simulating the queues of the channels and of the device."""
    layers, channels = len(times), ("gather", "fetch")
    queues: dict[str, list[int]] = {channel: [] for channel in channels}
    busy = dict.fromkeys((*channels, "device"), False)
    here = dict.fromkeys(channels, -1)
    heap: list[tuple[float, int, str, int]] = []
    started, asked, sequence, now = -1, -1, 0, 0.0

    def ask(up_to: int) -> None:
        nonlocal asked
        while asked < min(up_to, layers - 1):
            asked += 1
            for queue in queues.values():
                queue.append(asked)

    def begin() -> None:
        nonlocal started, sequence
        for channel, queue in queues.items():
            if queue and not busy[channel]:
                layer = queue.pop(0)
                busy[channel] = True
                sequence += 1
                heapq.heappush(heap, (now + float(getattr(times, channel)[layer]), sequence, channel, layer))
        if not busy["device"] and started + 1 < layers and min(here.values()) > started:
            started += 1
            busy["device"] = True
            sequence += 1
            heapq.heappush(heap, (now + float(times.compute[started]), sequence, "device", started))
            ask(started + lookahead)
            begin()

    ask(lookahead - 1)
    begin()
    while heap:
        now, _, what, layer = heapq.heappop(heap)
        busy[what] = False
        if what != "device":
            here[what] = layer
        begin()
    return now


def test_v3_schedule() -> None:
    schedule = two_channel_schedule(example())
    times = zip(
        schedule.gather_end, schedule.fetch_end, schedule.compute_start, schedule.compute_end, strict=True
    )
    assert list(times) == [(1, 3, 3, 7), (4, 6, 7, 11), (8, 13, 13, 17), (14, 16, 17, 21)]
    assert schedule.seconds == 21
    assert list(schedule.stalls) == [3, 0, 2, 0]
    further = two_channel_schedule(example(), lookahead=2)
    assert further.seconds == 20
    assert list(further.fetch_end) == [3, 6, 12, 15]


def test_the_recurrence_equals_1000_simulations() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1000):
        layers = int(rng.integers(1, 10))
        times = LayerTimes(*(rng.integers(0, 20, layers).astype(float) for _ in range(3)))
        lookahead = int(rng.integers(1, 5))
        assert two_channel_schedule(times, lookahead).seconds == simulated(times, lookahead)


@given(layer_times(), st.integers(1, 5))
def test_more_lookahead_is_never_slower(times: LayerTimes, lookahead: int) -> None:
    seconds = two_channel_schedule(times, lookahead).seconds
    assert two_channel_schedule(times, lookahead + 1).seconds <= seconds
    assert seconds >= max(times.compute.sum(), times.gather.sum(), times.fetch.sum())


@given(layer_times())
def test_one_layer_ahead_has_a_closed_form(times: LayerTimes) -> None:
    slowest = np.maximum(times.compute[:-1], np.maximum(times.gather[1:], times.fetch[1:])).sum()
    first = max(times.gather[0], times.fetch[0])
    assert two_channel_schedule(times).seconds == first + slowest + times.compute[-1]


def test_a_backward_pass_prefetches_in_reverse_order() -> None:
    forward = example()
    backward = LayerTimes(2 * forward.compute[::-1], forward.gather[::-1], forward.fetch[::-1])
    step = forward.followed_by(backward)
    assert len(step) == 8
    alone = float(backward.compute.sum() + backward.gather.sum() + backward.fetch.sum())
    assert two_channel_schedule(step).seconds < two_channel_schedule(forward).seconds + alone


def test_times_follow_from_sizes_and_rates() -> None:
    assert gather_seconds(8e9, 8, 250e9) == pytest.approx(7 / 8 * 16e9 / 250e9)
    assert gather_seconds(8e9, 1, 250e9) == 0.0
    assert fetch_seconds(4, 1, 1e6, 25e9, 8e9) == pytest.approx(8e6 / 25e9 + 12e6 / 8e9)


def test_predictions_are_ordered_by_hits_then_tokens_then_id() -> None:
    received, hits = [5, 0, 7, 9, 9], [1.0, 9.0, 2.0, 2.0, 2.0]
    assert predict_experts(received, hits, frozenset(), 9) == (3, 4, 2, 0)
    assert predict_experts(received, hits, {3}, 2) == (4, 2)
    assert predict_experts(received, hits, {3}, 0) == ()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gather": np.array([1.0])}, "equally many"),
        ({"fetch": np.full(4, -1.0)}, "fetch"),
        ({"compute": []}, "compute"),
    ],
)
def test_an_error_names_the_wrong_times(change: dict, named: str) -> None:
    given = {"compute": np.ones(4), "gather": np.ones(4), "fetch": np.ones(4), **change}
    with pytest.raises(ValueError, match=named):
        LayerTimes(**given)
    with pytest.raises(ValueError, match="lookahead"):
        two_channel_schedule(example(), 0)
