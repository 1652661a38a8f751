"""Expert packing: the map, and when the controller packs more (V9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.lina.packing import (
    ExpertPacking,
    PackingController,
    Reason,
    StepTimes,
)

#: V9: expert and all-to-all micro-operation by packing factor.
TIMES = {1: (0.4, 1.5), 2: (0.8, 1.2), 4: (1.6, 0.9)}


def test_v9_map():
    packed = ExpertPacking(experts=8, devices=8, factor=2)
    assert packed.groups() == (range(4), range(4, 8))
    assert list(packed.experts_of(1)) == list(packed.experts_of(5)) == [2, 3]
    assert [list(packed.hosts(expert)) for expert in range(0, 8, 2)] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_two_packed_experts_on_two_devices_are_data_parallel():
    packed = ExpertPacking(2, 2, 2)
    assert packed.group_size == 1
    assert packed.experts_of(0) == packed.experts_of(1) == range(2)


@given(st.integers(0, 4), st.sampled_from([1, 3]), st.integers(1, 50), st.data())
def test_each_group_hosts_every_expert(log_factor, odd, experts, data):
    devices = odd << log_factor
    factors = st.integers(0, log_factor).map(lambda power: 1 << power)
    packing = ExpertPacking(experts, devices, data.draw(factors))
    for group in packing.groups():
        hosted = [expert for device in group for expert in packing.experts_of(device)]
        assert hosted == list(range(experts))
    loads = [len(packing.experts_of(device)) for device in range(devices)]
    assert max(loads) - min(loads) <= 1
    for expert in range(experts):
        hosts = [device for device in range(devices) if expert in packing.experts_of(device)]
        assert hosts == list(packing.hosts(expert))


def run_controller(packing: ExpertPacking, times) -> tuple[PackingController, dict[int, tuple[int, Reason]]]:
    """Run 40 steps with `times(factor)`; return the changes by step."""
    controller = PackingController(packing)
    changes = {}
    for step in range(1, 41):
        before = controller.packing.factor
        decision = controller.after_step(step, StepTimes(*times(before)))
        if decision is not None:
            assert decision.iteration == step + 1
            assert (decision.from_factor, decision.to_factor) == (before, controller.packing.factor)
            changes[step] = (decision.to_factor, decision.reason)
    return controller, changes


def test_v9_controller_keeps_the_largest_factor_that_fits():
    controller, changes = run_controller(ExpertPacking(8, 8), lambda factor: (*TIMES[factor], 10.0))
    assert changes == {
        10: (2, Reason.EXPERTS_SHORTER),
        14: (4, Reason.EXPERTS_SHORTER),
        18: (2, Reason.EXPERTS_LONGER),
    }
    assert controller.is_frozen


def test_packing_that_lengthens_the_step_is_reverted():
    seconds = {1: 10.0, 2: 10.3, 4: 9.0}
    _, changes = run_controller(ExpertPacking(8, 8), lambda factor: (0.1, 1.0, seconds[factor]))
    assert changes == {10: (2, Reason.EXPERTS_SHORTER), 14: (1, Reason.STEP_LONGER)}


def test_groups_of_one_device_are_judged_by_the_step():
    def times(seconds):
        return lambda factor: (0.3, 0.0 if factor == 2 else 1.0, seconds[factor])

    _, changes = run_controller(ExpertPacking(2, 2), times({1: 10.0, 2: 6.0}))
    assert changes == {10: (2, Reason.EXPERTS_SHORTER)}
    _, changes = run_controller(ExpertPacking(2, 2), times({1: 10.0, 2: 11.0}))
    assert changes[14] == (1, Reason.STEP_LONGER)


def test_nothing_is_packed_while_experts_take_longer():
    controller, changes = run_controller(ExpertPacking(8, 8), lambda factor: (2.0, 1.0, 10.0))
    assert changes == {}
    assert not controller.is_frozen


def test_experts_that_do_not_fit_are_not_packed():
    controller = PackingController(ExpertPacking(8, 8), lambda packing: packing.experts_of(0).stop <= 2)
    decisions = [controller.after_step(step, StepTimes(0.1, 1.0, 10.0)) for step in range(1, 41)]
    assert [
        (decision.iteration, decision.from_factor, decision.to_factor, decision.reason)
        for decision in decisions
        if decision
    ] == [
        (11, 1, 2, Reason.EXPERTS_SHORTER),
        (15, 2, 2, Reason.NO_MEMORY),
    ]
    assert not controller.may_change


def test_first_step_after_a_change_is_not_counted():
    controller = PackingController(ExpertPacking(8, 8))
    for step in range(1, 15):
        is_first = step == 11
        controller.after_step(step, StepTimes(0.1, 1.0, 100.0 if is_first else 10.0))
    assert controller.packing.factor == 4


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((8, 8, 3), "factor is 3; it must divide the 8 devices"),
        ((8, 6, 4), "factor is 4; it must divide the 6 devices"),
        ((0, 4, 1), "experts is 0"),
    ],
)
def test_wrong_packings_are_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        ExpertPacking(*arguments)
