"""Where everybody is before a decision places anybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.core.placement.buddy_blocks import Blocks
from scheduling.core.question.arrays import BoolArray, JobArrays, Placements
from scheduling.core.question.snapshot import IntArray


@dataclass(frozen=True)
class PresentPlacement:
    """What placing needs to know of a decision's question; rows are the problem's.

    The first ``count`` rows are jobs, the others held offers. ``held``: GPUs that jobs have now; ``gpus``:
    how many; ``locked``: jobs that keep them through the next slot. ``blocked``: addresses that nobody may
    have for now. ``by_submission``: rank of every row in the order in which jobs of one size are placed.
    """

    ids: Sequence[str]
    jobs: JobArrays
    count: int
    held: Placements
    gpus: IntArray
    locked: BoolArray
    blocks: Blocks
    blocked: IntArray
    by_submission: IntArray
