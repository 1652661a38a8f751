"""Who grows in the next slot before Algorithm 2 grants what is left: a strategy that a policy hands in."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from scheduling.core.plans.slots import Slots
from scheduling.core.plans.timeline import Timeline
from scheduling.core.question.arrays import BoolArray, JobArrays, Plans
from scheduling.core.question.snapshot import FloatArray, IntArray


class GrowthRules(NamedTuple):
    """When growth is worth it. ``minimum_gain``: iterations that a larger level must win beyond its pause.
    ``relief``: seconds of everybody's completion that one GPU second needed less later is worth; Algorithm 2
    does not ask for it."""

    slots: Slots
    suffix: bool
    minimum_gain: float
    relief: float = 0.0


class FirstGrowth(Protocol):
    """Lets some of ``rows`` grow, at most ``most`` of them, and plans them anew so that all ends ``due``
    stand.

    Returns the plans, what they leave free, and how many grew.
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
