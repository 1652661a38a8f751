"""SIM-T: the shared link (V1), two layers (V3) and the calibrated model (CAL-1).

The text's timeline and the sensitivity to rates, pieces and packing are checks of `reproduce lina`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.lina.calibration import CALIBRATED
from moe.lina.micro_operations import Traffic
from moe.lina.scheduler import Mode
from moe.lina.shared_link import Rates, SimulatedLink, Transfer
from moe.lina.training_step import (
    BASELINE,
    FIXED,
    PARTITION,
    PIPELINING,
    PRIORITY,
    TUTEL,
    StepModel,
    simulate_step,
)

A2A, AR = Traffic.ALL_TO_ALL, Traffic.ALL_REDUCE
FAIR = Rates()
LOSING = Rates(0.25, 0.25)


def v1(link: SimulatedLink, pieces: int = 1) -> tuple[list[float], float]:
    """An all-reduce of 8 at 0 and an all-to-all of 6 at 2; when they end."""
    all_reduces = [link.submit(AR, 8.0 / pieces) for _ in range(pieces)]
    link.advance(2.0)
    all_to_all = link.submit(A2A, 6.0)
    return [link.wait(piece) for piece in all_reduces], link.wait(all_to_all)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [(FAIR, (14.0, 14.0)), (LOSING, (26.0, 26.0)), (Rates(0.24, 0.10), (30.5, 27.0))],
)
def test_v1_overlapping_classes_get_their_rates(rates, expected):
    (reduced,), exchanged = v1(SimulatedLink(rates, Mode.TWO_STREAMS))
    assert (reduced, exchanged) == pytest.approx(expected)


def test_v1_priority_waits_for_one_piece():
    assert v1(SimulatedLink(FAIR, Mode.STRICT)) == ([8.0], 14.0)
    assert v1(SimulatedLink(FAIR, Mode.STRICT), pieces=4) == ([2.0, 10.0, 12.0, 14.0], 8.0)


@given(
    st.lists(st.tuples(st.floats(0, 3), st.sampled_from(Traffic), st.floats(0.1, 4)), min_size=1, max_size=20)
)
def test_priority_delays_an_all_to_all_by_one_piece_at_most(arrivals):
    link = SimulatedLink(FAIR, Mode.STRICT)
    transfers: dict[Traffic, list[Transfer]] = {A2A: [], AR: []}
    for gap, traffic, work in arrivals:
        link.advance(link.now + gap)
        transfers[traffic].append(link.submit(traffic, work))
    for transfer in (*transfers[A2A], *transfers[AR]):
        link.wait(transfer)
    longest = max((transfer.work for transfer in transfers[AR]), default=0.0)
    earlier_end = 0.0
    for transfer in transfers[A2A]:
        could_begin = max(transfer.submitted_at, earlier_end)
        assert transfer.began_at - could_begin <= longest + 1e-6
        earlier_end = transfer.ended_at
    # One at a time, and the link is never idle while something waits.
    everything = sorted((*transfers[A2A], *transfers[AR]), key=lambda transfer: transfer.began_at)
    end = 0.0
    for transfer in everything:
        assert transfer.began_at >= end - 1e-6
        assert transfer.began_at <= max(end, transfer.submitted_at) + 1e-6
        assert transfer.ended_at - transfer.began_at == pytest.approx(transfer.work, abs=1e-6)
        end = transfer.ended_at


def test_bounded_overlap_shares_the_link_for_one_piece():
    link = SimulatedLink(FAIR, Mode.BOUNDED_OVERLAP)
    all_reduces = [link.submit(AR, 4.0) for _ in range(2)]
    link.advance(2.0)
    all_to_alls = [link.submit(A2A, 3.0) for _ in range(2)]
    # From 2 to 6 both have half; the all-to-alls follow each other, and the second all-reduce waits.
    assert [link.wait(transfer) for transfer in (*all_reduces, *all_to_alls)] == [6.0, 14.0, 7.0, 10.0]


V3 = StepModel(
    layers=2, attention=1, gate=0, combine=0.5, expert=0.5, gradients=3, all_to_all={2: 2.0}, piece=1.0
)


@pytest.mark.parametrize(
    ("schedule", "total"),
    [(BASELINE, 33), (FIXED, 32), (PRIORITY, 33), (PARTITION, 31), (PIPELINING, 29)],
)
def test_v3_steps(schedule, total):
    assert simulate_step(V3, 2, schedule).total == pytest.approx(total)


def test_v3_parts_of_a_step():
    step = simulate_step(V3, 2, BASELINE)
    # The second all-reduce ends 3 after the backward pass.
    assert (step.forward, step.backward, step.total) == pytest.approx((12, 18, 33))
    # The first all-reduce doubles one of the four backward all-to-alls.
    assert step.slow_downs == pytest.approx((1, 1, 2, 1))
    assert step.all_to_all_share == pytest.approx(18 / 33)


def test_v3_interference_and_ends_of_all_reduces():
    losing = replace(V3, rates=LOSING)
    assert simulate_step(losing, 2, BASELINE).total == pytest.approx(37)
    assert simulate_step(losing, 2, FIXED).total == pytest.approx(32)
    ends = simulate_step(V3, 2, PARTITION).all_reduce_ends
    assert ends == pytest.approx((24, 27, 28, 29, 30, 31))


#: By experts: step, gains of fixed, priority, partition, pipelining and Lina, all-to-all, mean slow-down.
CAL_1 = {
    2: (58.72, (1.10, 1.12, 1.22, 1.35, 1.67), None, 2.32),
    4: (69.48, (1.12, 1.18, 1.27, 1.39, 1.42), 2.18, 2.32),
    8: (92.98, (1.15, 1.27, 1.35, 1.45, 1.68), 2.56, 2.32),
    16: (110.74, (1.12, 1.28, 1.35, 1.43, 1.60), 2.08, 2.14),
}


def gains(model: StepModel, experts: int) -> list[float]:
    """Over the baseline: fixed, priority, partition, pipelining, and Lina with a packing factor of 2."""
    baseline = simulate_step(model, experts, BASELINE).total
    steps = [simulate_step(model, experts, schedule) for schedule in (FIXED, PRIORITY, PARTITION, PIPELINING)]
    steps.append(simulate_step(model, experts // 2, PIPELINING, is_packed=True))
    return [baseline / step.total for step in steps]


@pytest.mark.parametrize("experts", CAL_1)
def test_calibrated_model_has_the_ratios_of_its_table(experts):
    total, ratios, all_to_all, slow_down = CAL_1[experts]
    baseline = simulate_step(CALIBRATED, experts, BASELINE)
    speedups = gains(CALIBRATED, experts)
    assert baseline.total == pytest.approx(total, abs=0.01)
    assert speedups == pytest.approx(ratios, abs=0.01)
    assert 1 < speedups[0] < speedups[1] < speedups[2] < speedups[3] <= speedups[4]
    assert sum(baseline.slow_downs) / len(baseline.slow_downs) == pytest.approx(slow_down, abs=0.01)
    lina = simulate_step(CALIBRATED, experts // 2, PIPELINING, is_packed=True)
    ratio = baseline.all_to_all / lina.all_to_all if lina.all_to_all else None
    assert ratio == (all_to_all and pytest.approx(all_to_all, abs=0.01))
    assert baseline.total >= simulate_step(CALIBRATED, experts, TUTEL).total > lina.total


def test_wrong_models_are_refused():
    with pytest.raises(ValueError, match="group_size is 3; the model knows 1, 2, 4, 8, 16"):
        simulate_step(CALIBRATED, 3, FIXED)
    with pytest.raises(ValueError, match="rates are 0 and 1"):
        Rates(0.0, 1.0)
    with pytest.raises(ValueError, match="gate is -1; it must be at least 0"):
        replace(CALIBRATED, gate=-1.0)
    with pytest.raises(ValueError, match=r"all_to_all\[2\] is -1"):
        replace(CALIBRATED, all_to_all={2: -1.0})
    with pytest.raises(ValueError, match="layers is 0"):
        replace(CALIBRATED, layers=0)
    with pytest.raises(ValueError, match="piece 0"):
        replace(CALIBRATED, piece=0.0)
