"""Places that the simulator's invariant allows a job."""

from __future__ import annotations

import numpy as np
import pytest

from simulation.engine.checks.invariants import sits_well


@pytest.mark.parametrize(
    ("width", "held", "well"),
    [
        (8, [4, 5, 6, 7], True),
        (8, [2, 3, 4, 5], False),
        (8, [6, 7, 8, 9], False),
        (8, list(range(16)), True),
        (8, list(range(4, 12)), False),
        # Servers of six are a block of four and one of two.
        (6, [6, 7, 8, 9], True),
        (6, [2, 3, 4, 5], False),
        (6, [10, 11], True),
        (6, [9, 10], False),
        (6, [0, 1, 2, 3, 6, 7, 8, 9], True),
        (6, [4, 5, 10, 11], True),
        (6, [0, 1, 6, 7], False),
    ],
)
def test_a_job_sits_on_an_aligned_part_of_a_block_or_on_whole_blocks(
    width: int, held: list[int], well: bool
) -> None:
    assert sits_well(np.array(held), width) is well
