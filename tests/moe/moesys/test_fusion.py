"""Slices, layouts and buckets: vector V4 and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.moesys.fusion import (
    fused_seconds,
    padding,
    plan_buckets,
    plan_gather,
    slice_parameter,
    unfused_seconds,
)


def test_v4_padding_slices_and_buckets() -> None:
    assert padding(1000, 2) == 24
    assert (slice_parameter(1000, 2, 4).padded, slice_parameter(1000, 2, 4).slice_elements) == (1024, 256)
    assert (slice_parameter(1000, 2, 6).padded, slice_parameter(1000, 2, 6).slice_elements) == (1026, 171)
    assert padding(1, 2) == 127
    assert (slice_parameter(1, 2, 8).padded, slice_parameter(1, 2, 8).slice_elements) == (128, 16)
    plan = plan_buckets([2500, 100, 1000, 500], 2, capacity=3000)
    assert plan.alone == (0,)
    assert plan.buckets[0].members == ((1, 0), (3, 128), (2, 640))
    assert plan.buckets[0].fill == 1664
    assert plan.collectives == 2
    unfused = unfused_seconds([1e6] * 200, 20e-6, 25e9)
    fused = fused_seconds([1e6] * 200, 16e6, 20e-6, 25e9)
    assert (unfused, fused) == pytest.approx((12.00e-3, 8.26e-3))
    assert unfused / fused == pytest.approx(1.453, abs=1e-3)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6), st.integers(1, 9), st.sampled_from([2, 4]))
def test_slices_hold_every_element_once(elements: list[int], ranks: int, element_bytes: int) -> None:
    layout = plan_gather(elements, element_bytes, ranks)
    for count, slices in zip(elements, layout.slices, strict=True):
        owned = [slices.owned(rank) for rank in range(ranks)]
        assert [element for begin, end in owned for element in range(begin, end)] == list(range(count))
        assert slices.padded % ranks == 0
        assert slices.padded - count < 256 // element_bytes + ranks
    ends = [*layout.offsets[1:], layout.part_elements]
    widths = [end - begin for begin, end in zip(layout.offsets, ends, strict=True)]
    assert widths == [slices.slice_elements for slices in layout.slices]


@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(0, 6000),
)
def test_every_gradient_travels_once_to_its_owner(grads: list[tuple[int, int]], capacity: int) -> None:
    elements, owners = zip(*grads, strict=True)
    plan = plan_buckets(elements, 4, owners, capacity)
    members = [number for bucket in plan.buckets for number, _ in bucket.members]
    assert sorted([*members, *plan.alone]) == list(range(len(grads)))
    for bucket in plan.buckets:
        assert bucket.fill <= capacity
        assert len({owners[number] for number, _ in bucket.members}) == 1
        ends = [offset + elements[number] for number, offset in bucket.members]
        begins = [offset for _, offset in bucket.members]
        assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
    if capacity == 0:
        assert plan.buckets == ()


@pytest.mark.parametrize("elements", [0, -3])
def test_an_empty_parameter_is_an_error(elements: int) -> None:
    with pytest.raises(ValueError, match="elements"):
        slice_parameter(elements, 2, 4)
