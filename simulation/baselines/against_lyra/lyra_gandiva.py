"""Gandiva as in Lyra's evaluation: first come, first served; jobs grow only while none waits (Lyra section
3.7).

`gandiva.py` is Gandiva as in ElasticFlow's evaluation, with turns on shared GPUs.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from scheduling.core.lyra.base_demands import BaseOrder
from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.tick import Division, TwoPhase, divide
from scheduling.core.lyra.worker_changes import WorkerChange
from scheduling.core.problem.problem import Problem
from scheduling.core.question.snapshot import FloatArray
from scheduling.core.together.sharing import Sharing
from scheduling.policies.shares_workers import SharesWorkers, chosen_rules


class LyraGandiva(SharesWorkers):
    """Running jobs grow in turn on their own servers; for a new job, those that grew last shrink first."""

    name = "lyra_gandiva"
    rules = TwoPhase(order=BaseOrder.FIRST_COME, growth=Growth.ROUND_ROBIN)
    memory_columns: ClassVar[tuple[str, ...]] = ("grown_at",)

    def divided(self, problem: Problem, sharing: Sharing) -> Division:
        """Number of workers of each job on each server."""
        demands = sharing.demands._replace(grown_at=_grown_at(problem))
        rules = chosen_rules(self.rules, problem.settings.two_phase)
        return divide(sharing.fleet, sharing.workers(problem.columns), demands, rules)

    def noted(self, problem: Problem, division: Division) -> FloatArray:
        """When each job last grew."""
        grows = division.change == WorkerChange.GROW
        return np.where(grows, problem.next_slot_at, _grown_at(problem))[:, None]


def _grown_at(problem: Problem) -> FloatArray:
    return np.ascontiguousarray(problem.columns.memory[:, 0])
