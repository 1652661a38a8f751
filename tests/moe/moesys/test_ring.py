"""Rings of device memory: vector V8, closed forms against the schedule, and spread layers."""

from __future__ import annotations

import pytest

from moe.moesys.ring import (
    RingMemory,
    fewest_sections,
    first_pass_seconds,
    most_sections,
    period_seconds,
    schedule_ring,
    spread_layers,
    steady_seconds,
    without_overlap_seconds,
)

PAIRS = [(4, 1), (4, 4), (4, 6), (2, 3), (1, 4), (4, 12)]


def test_v8_schedule_of_a_ring() -> None:
    schedule = schedule_ring(6, 3, 2.0, 3.0)
    assert list(zip(schedule.compute_start, schedule.compute_end, strict=True)) == [
        (0, 2),
        (2, 4),
        (4, 6),
        (6, 8),
        (8, 10),
        (11, 13),
    ]
    assert list(zip(schedule.load_start, schedule.load_end, strict=True))[3:] == [(2, 5), (5, 8), (8, 11)]
    assert schedule.loads == 3
    assert [schedule_ring(6, sections, 2.0, 3.0).seconds for sections in (1, 2, 4, 5, 6)] == [
        27,
        16,
        12,
        12,
        12,
    ]
    assert fewest_sections(6, 2.0, 3.0) == 4
    assert without_overlap_seconds(6, 3, 2.0, 3.0) == 21


def test_v8_of_repeated_passes() -> None:
    assert list(schedule_ring(6, 3, 2.0, 3.0, passes=3).pass_ends) == [13, 31, 49]
    assert [period_seconds(6, sections, 2.0, 3.0) for sections in (2, 3, 5)] == [18, 18, 18]
    assert schedule_ring(6, 6, 2.0, 3.0, passes=5).loads == 0


def test_closed_forms_equal_the_schedule() -> None:
    for layers in range(1, 13):
        for sections in range(1, layers + 2):
            for compute, load in [*PAIRS, (3, 0), (3, 4), (5, 4)]:
                schedule = schedule_ring(layers, sections, compute, load)
                assert schedule.seconds == first_pass_seconds(layers, sections, compute, load)
                assert period_seconds(layers, sections, compute, load) == pytest.approx(
                    steady_seconds(layers, sections, compute, load)
                )


def test_fewest_sections_avoid_every_stall() -> None:
    for layers in range(1, 13):
        for compute, load in PAIRS:
            stall_free = [
                sections
                for sections in range(1, layers + 1)
                if schedule_ring(layers, sections, compute, load).seconds == layers * compute
            ]
            assert fewest_sections(layers, compute, load) == min(stall_free)


def test_v8_of_spread_layers() -> None:
    assert spread_layers(6, 4) == (1, 4)
    assert period_seconds(6, 4, 2.0, 3.0, spread_layers(6, 4)) == 12
    assert period_seconds(6, 4, 2.0, 3.0, range(2)) == 14
    spread = spread_layers(24, 12)
    assert period_seconds(24, 12, 4.0, 12.0) == 288
    assert period_seconds(24, 12, 4.0, 12.0, range(10)) == 192
    assert period_seconds(24, 12, 4.0, 12.0, spread) == 168


def test_spread_layers_are_never_slower_than_the_plain_ring() -> None:
    for layers in range(4, 33, 3):
        for sections in range(3, layers):
            for compute, load in PAIRS:
                spread = period_seconds(layers, sections, compute, load, spread_layers(layers, sections))
                assert spread <= steady_seconds(layers, sections, compute, load) + 1e-9
                bound = max(layers * compute, (layers - sections + 2) * load)
                assert bound - 1e-9 <= spread <= 1.1 * bound + 1e-9


def test_memory_of_the_published_ring() -> None:
    saved = {sections: RingMemory(24, sections, 302e6, 2.12e9, 2e9).saving for sections in (12, 8, 4, 2)}
    assert saved == pytest.approx({12: 0.319, 8: 0.425, 4: 0.531, 2: 0.584}, abs=2e-3)
    assert [fewest_sections(24, compute, 12.1) for compute in (4, 6, 8, 10, 11, 12, 13)] == [
        17,
        14,
        10,
        6,
        4,
        3,
        2,
    ]


def test_the_most_sections_that_fits() -> None:
    assert most_sections(24, 1e9, 4e9, 16e9) == 12
    assert most_sections(24, 1e9, 4e9, 1e12) == 24
    assert most_sections(24, 1e9, 4e9, 5.9e9) is None


def test_an_error_names_the_argument() -> None:
    with pytest.raises(ValueError, match="sections"):
        schedule_ring(6, 0, 1.0, 1.0)
    with pytest.raises(ValueError, match="pinned"):
        schedule_ring(6, 3, 1.0, 1.0, pinned=(0, 1, 2))
    with pytest.raises(ValueError, match="load_seconds"):
        schedule_ring(6, 3, 1.0, -1.0)
