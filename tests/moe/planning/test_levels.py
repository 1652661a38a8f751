"""Numbers of workers on which a function with experts is measured."""

from __future__ import annotations

import pytest

from moe.planning.levels import gang_levels


@pytest.mark.parametrize(
    ("experts", "batch", "levels"),
    [
        ((8,), 64, [1, 2, 4, 8, 16]),
        ((6,), 72, [1, 2, 3, 6, 12]),
        ((12,), 72, [1, 2, 4, 6, 12]),
        ((6, 12), 72, [1, 2, 3, 6, 12]),
        ((6,), 8, [1, 2, 4, 8]),
        ((7,), 64, [1, 2, 4, 8, 16]),
        ((7,), 56, [1, 2, 4, 7, 14]),
        ((6,), 9, [1, 3]),
        ((1,), 48, [1, 2, 4, 8, 16]),
    ],
)
def test_the_largest_even_number_of_each_block_is_a_level(
    experts: tuple[int, ...], batch: int, levels: list[int]
) -> None:
    assert gang_levels(experts, batch, 16) == levels


def test_no_level_exceeds_the_most_workers() -> None:
    assert gang_levels((6,), 72, 11) == [1, 2, 3, 6]
    assert gang_levels((6,), 72, 5) == [1, 2, 3]


def test_a_layer_without_experts_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        gang_levels((0,), 64, 8)
