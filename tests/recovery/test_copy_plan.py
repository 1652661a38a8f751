"""When copies are sent and how often points are made: the plan that the runtime follows."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.costs.frequency import points_every
from recovery.traffic.idle_spans import IdleProfile, IdleSpan
from recovery.traffic.link import Link, SubBuffers
from recovery.traffic.partition import USABLE_SHARE, partition
from recovery.traffic.plan import CopyPlan, CopyTask, bytes_in_span, plan_copies

MB = 1_000_000
LINK = Link(10.0 * MB, 0.001)
BUFFERS = SubBuffers(4 * MB, 4)
FAILURES_PER_SECOND = 1e-6


def profile(*spans: float, iteration_seconds: float = 1.0) -> IdleProfile:
    idle = tuple(IdleSpan(place, seconds) for place, seconds in enumerate(spans))
    return IdleProfile(idle, iteration_seconds, 0.0)


def task(size: int, replicas: int = 2, delay_seconds: float = 0.0) -> CopyTask:
    return CopyTask(size, replicas, LINK, BUFFERS, delay_seconds)


def planned(idle: IdleProfile, size: int, **changes: Any) -> CopyPlan:
    return plan_copies(idle, task(size), FAILURES_PER_SECOND, **changes)


def test_a_copy_that_fits_before_the_vote_takes_one_iteration() -> None:
    plan = planned(profile(0.5, 0.1, 0.0), 3 * MB)
    assert (plan.every, plan.iterations, plan.extension_seconds) == (1, 1, 0.0)
    assert {chunk.span for chunk in plan.chunks} == {0}
    assert plan.idle_seconds == pytest.approx(0.6)


def test_a_copy_beyond_one_iteration_is_spread_over_several() -> None:
    # 10 MB take a second, and each iteration has half a second, of which 0.8 may be used.
    plan = planned(profile(0.3, 0.2, 0.0), 10 * MB)
    assert plan.extension_seconds == 0.0
    assert plan.iterations == plan.every == 3


def test_a_late_copy_loses_the_time_of_the_first_spans() -> None:
    idle = profile(0.5, 0.0)
    assert planned(idle, 3 * MB).every == 1
    late = plan_copies(idle, task(3 * MB, delay_seconds=0.2), FAILURES_PER_SECOND)
    assert late.every == 2


def test_without_idle_time_points_are_rare_and_lengthen_iterations() -> None:
    plan = planned(profile(0.0, 0.0), 10 * MB)
    assert plan.extension_seconds == pytest.approx(1.0, rel=0.02)
    assert plan.every == points_every(plan.extension_seconds, 1.0, FAILURES_PER_SECOND) > 1000
    assert plan.overflows
    assert planned(profile(0.0, 0.0), 10 * MB, most_every=60).every == 60
    never = plan_copies(profile(0.0, 0.0), task(10 * MB), 0.0, most_every=60)
    assert never.every == 60, "servers that never fail need no more points than the bound asks for"


def test_costlier_copies_keep_within_their_share_of_time() -> None:
    idle = profile(0.5, 0.0)
    assert planned(idle, MB).every == 1
    for cost_seconds in (0.01, 0.05, 0.3):
        every = planned(idle, MB, cost_seconds=cost_seconds, most_share=0.02).every
        assert cost_seconds / every <= 0.02 * 1.0 + 1e-12
        assert every == 1 or cost_seconds / (every - 1) > 0.02


def test_durable_frequency_never_costs_more_than_the_share() -> None:
    # A second in 20 would be 5 % of the time.
    bounds = {"most_share": 0.02, "worth_every": 20}
    plan = planned(profile(0.0, 0.0), 10 * MB, **bounds)
    assert plan.extension_seconds / plan.every <= 0.02 < plan.extension_seconds / (plan.every - 1)
    assert planned(profile(0.0, 0.0), 10 * MB, most_every=5, **bounds).every == 5, "as its owner asks for"
    # Half a second of idle time in each iteration carries it in 20, which costs nothing.
    spread = planned(profile(0.08, 0.0), 10 * MB, most_share=0.02, worth_every=5)
    assert (spread.extension_seconds, spread.every) == (0.0, spread.iterations)
    assert spread.every > 5


idle_seconds = st.lists(st.floats(0.0, 3.0), min_size=1, max_size=6)


@given(spans=idle_seconds, size=st.integers(1, 60 * MB), replicas=st.integers(2, 4))
def test_every_byte_is_sent_once_and_spans_keep_their_share(
    spans: list[float], size: int, replicas: int
) -> None:
    plan = plan_copies(profile(*spans), task(size, replicas), FAILURES_PER_SECOND)
    assert sum(chunk.size for chunk in plan.chunks) == (replicas - 1) * size
    assert max(chunk.size for chunk in plan.chunks) <= BUFFERS.chunk_bytes
    assert plan.every >= plan.iterations >= 1
    if plan.overflows:
        return
    cycle = [*spans] * plan.iterations
    for number, chunks in groupby(plan.chunks, key=lambda chunk: chunk.span):
        used = sum(LINK.seconds(chunk.size) for chunk in chunks)
        if plan.iterations > 1 or plan.every == 1:
            assert used <= USABLE_SHARE * cycle[number] + 1e-6


@given(spans=idle_seconds, size=st.integers(1, 20 * MB))
def test_more_idle_time_never_lengthens_iterations(spans: list[float], size: int) -> None:
    before, after = planned(profile(*spans), size), planned(profile(*(2 * span for span in spans)), size)
    if not before.overflows:
        assert not after.overflows
        assert after.every <= before.every


@given(seconds=st.floats(0.0, 5.0))
def test_a_span_is_allowed_what_the_partition_sends_in_it(seconds: float) -> None:
    traffic = partition((seconds, 0.0), 100 * MB, 2, LINK, BUFFERS)
    in_span = sum(chunk.size for chunk in traffic.chunks if chunk.span == 0)
    assert bytes_in_span(seconds, LINK, BUFFERS) == pytest.approx(in_span, abs=2)
