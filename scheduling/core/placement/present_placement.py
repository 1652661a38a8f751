"""The present placement: which GPUs each job holds before a decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.core.placement.buddy_blocks import Blocks
from scheduling.core.question.arrays import BoolArray, JobArrays, Placements
from scheduling.core.question.snapshot import IntArray


@dataclass(frozen=True)
class PresentPlacement:
    """The input of placement. Rows are those of the problem: ``count`` jobs, then held offers."""

    #: Identifier of each job.
    ids: Sequence[str]
    #: Scaling curves and state of all rows.
    jobs: JobArrays
    #: Number of jobs.
    count: int
    #: GPUs that each job holds now.
    held: Placements
    #: Number of GPUs that each job holds now.
    gpus: IntArray
    #: True for a job that keeps its GPUs through the next slot.
    locked: BoolArray
    #: The cluster's buddy blocks.
    blocks: Blocks
    #: Addresses that no job may have for now.
    blocked: IntArray
    #: Position of each row in the order in which jobs of one size are placed.
    by_submission: IntArray
