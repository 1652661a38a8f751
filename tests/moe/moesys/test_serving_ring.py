"""Rings of models that serve: what fits, and which latency targets are admitted."""

from __future__ import annotations

import pytest

from moe.moesys.ring import spread_layers, steady_seconds
from moe.moesys.ring_admission import RingRequest, admit_ring
from moe.moesys.serving_ring import RingTimes, ServingRing, judge_ring, plan_serving_ring


@pytest.mark.parametrize(
    ("device_bytes", "sections"), [(249, None), (250, 2), (349, 2), (650, 6), (850, 7), (10**9, 7)]
)
def test_as_many_sections_as_fit(device_bytes: int, sections: int | None) -> None:
    plan = plan_serving_ring([100] * 7 + [60], 50, device_bytes)
    assert (plan.sections if plan else None) == sections
    if plan is not None:
        assert plan.pinned == spread_layers(8, plan.sections)
        assert plan.device_bytes <= device_bytes


@pytest.mark.parametrize("layer_bytes", [[], [100], [100, 100], [0, 0, 0]])
def test_few_layers_make_no_ring(layer_bytes: list[int]) -> None:
    assert plan_serving_ring(layer_bytes, 0, 10**9) is None


@pytest.mark.parametrize("sections", range(2, 8))
def test_it_plans_and_predicts_as_the_planner_of_rest(sections: int) -> None:
    request = RingRequest(8, 100, 50 + 100 * sections, 1.0, 50.0, dense_bytes=50)
    admission = admit_ring(request)
    plan = plan_serving_ring([100] * 8, 50, 50 + 100 * sections)
    assert plan is not None
    assert (plan.sections, plan.pinned, plan.device_bytes) == (
        admission.sections,
        admission.pinned,
        admission.bytes,
    )
    assert plan.pass_seconds(1.0, 2.0) == admission.steady_seconds


def test_target_is_admitted_by_copies_and_computation() -> None:
    ring = ServingRing(8, 6, 100, 50)
    assert judge_ring(ring, RingTimes(2.0), 8.0).is_admitted
    assert judge_ring(ring, RingTimes(2.0), None).seconds == 8.0
    slow = judge_ring(ring, RingTimes(2.0), 5.0)
    assert not slow.is_admitted
    assert slow.reason.startswith("4 of 8 layers stream from host memory; copying one takes 2000 ms, so a ")
    assert "at least 8000 ms" in slow.reason
    assert "750 bytes of device memory would meet it, or a target of 8000 ms" not in slow.reason
    assert "850 bytes of device memory would meet it" in slow.reason
    assert not judge_ring(ring, RingTimes(2.0, 1.5), 11.0).is_admitted
    assert judge_ring(ring, RingTimes(2.0, 1.5), 12.0).is_admitted
    twice = judge_ring(ring, RingTimes(2.0, 1.0, passes=2.0), 15.0)
    assert twice.seconds == 16.0
    assert "Computation alone takes 16000 ms; more device memory would not meet it." in twice.reason


def test_two_sections_take_the_longer_of_both() -> None:
    ring = ServingRing(6, 2, 100, 0)
    for compute, load in ((2.0, 3.0), (3.0, 2.0)):
        assert judge_ring(ring, RingTimes(load, compute), None).seconds == steady_seconds(6, 2, compute, load)
