"""The interface of a policy's own rule for growth, which runs before Algorithm 2 grants the leftover GPUs."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from scheduling.core.plans.slots import Slots
from scheduling.core.plans.timeline import Timeline
from scheduling.core.question.arrays import BoolArray, JobArrays, Plans
from scheduling.core.question.snapshot import FloatArray, IntArray


class GrowthRules(NamedTuple):
    """When a larger level is worth its pause."""

    #: The grid of slots.
    slots: Slots
    #: True for the suffix variant of filling, False for the uniform one.
    suffix: bool
    #: Iterations that a larger level must win beyond those that its pause costs.
    minimum_gain: float
    #: How long growth of each row is expected to last, in seconds; infinity where nothing is known.
    lasting: FloatArray
    #: Seconds of all jobs' completion times that a GPU second saved later is worth; unused in Algorithm 2.
    relief: float = 0.0


class FirstGrowth(Protocol):
    """Grows at most ``most`` of ``rows`` in the next slot and plans them anew; every job still meets ``due``.

    ``promised`` and ``due`` are by row of the problem; ``due`` is when the last iteration must end, in
    seconds from now. Returns (plans, the free capacity beside them, how many jobs grew).
    """

    def __call__(
        self,
        jobs: JobArrays,
        plans: Plans,
        rows: IntArray,
        promised: BoolArray,
        due: FloatArray,
        timeline: Timeline,
        rules: GrowthRules,
        most: int,
    ) -> tuple[Plans, Timeline, int]: ...
