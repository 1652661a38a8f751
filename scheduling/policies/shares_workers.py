"""What Lyra and the policies it is compared with share: base workers first, then flexible ones, on servers of both kinds.

They differ in who goes first, in how flexible workers are shared out, and in which servers they use: see
`scheduling.core.two_phase`.
"""

from __future__ import annotations

from math import inf
from typing import ClassVar

import numpy as np

from scheduling.core.answer import Answer, rows_of
from scheduling.core.arrays import Placements, no_plans
from scheduling.core.dispatching import take_all
from scheduling.core.problem import Problem
from scheduling.core.sharing import Sharing, place, sharing_of
from scheduling.core.two_phase import Division, TwoPhase, divide
from scheduling.policies.without_promises import WithoutPromises


class SharesWorkers(WithoutPromises):
    """Jobs run between their base and their most workers; nobody is promised anything, running bases never stop."""

    #: How this policy divides the servers.
    rules: ClassVar[TwoPhase]

    def reallocate(self, problem: Problem) -> Answer:
        """One tick of the scheduler (spec 2.5)."""
        verdicts = take_all(problem)
        sharing = problem.sharing or sharing_of(problem)
        division = self.divided(problem, sharing)
        columns = problem.columns
        pauses = problem.jobs

        def pause_seconds(row: int, gpus: int) -> float:
            level = int(np.searchsorted(pauses.levels[row], gpus))
            return float(pauses.pause[row, min(level, pauses.pause.shape[1] - 1)])

        shared = place(
            division.workers,
            division.role,
            sharing.demands.gpus_per_worker,
            Placements(columns.addresses, columns.offsets),
            sharing.servers,
            columns.ids,
            pause_seconds,
        )
        return Answer(
            problem=problem,
            verdicts=verdicts,
            plans=no_plans(problem.jobs.work.size, 2),
            planned=np.zeros(problem.count, dtype=np.bool_),
            declined=rows_of(verdicts, problem),
            placements=shared.placements,
            changes=shared.changes,
            changed=shared.rows,
            at_risk=(),
            next_wake_at=inf,
            cluster_memory=problem.cluster_memory,
            shared=shared,
        )

    def divided(self, problem: Problem, sharing: Sharing) -> Division:
        """Who gets how many workers where."""
        return divide(sharing.fleet, sharing.workers(problem.columns), sharing.demands, self.rules)
