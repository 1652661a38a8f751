"""The common part of Lyra and its comparison policies: base workers first, then flexible ones, on owned and
on-loan servers.

The policies differ in the order of jobs, in how flexible workers are divided, and in the servers they use:
see `scheduling.core.lyra.tick`.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import ClassVar

import numpy as np

from scheduling.core.lyra.base_demands import BaseOrder
from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.tick import Division, TwoPhase, divide
from scheduling.core.problem.answer import Answer, rows_of
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import no_plans
from scheduling.core.question.options import chosen
from scheduling.core.question.snapshot import FloatArray
from scheduling.core.question.two_phase_options import TwoPhaseOptions
from scheduling.core.together.shared_problem import SharedProblem
from scheduling.core.together.sharing import Sharing, held_by, place, put_back, set_aside
from scheduling.core.together.worker_ranges import sharing_of
from scheduling.policies.dispatching import take_all
from scheduling.policies.without_promises import WithoutPromises


class SharesWorkers(WithoutPromises):
    """Jobs run between their base demand and their most workers, without promises; base workers of running
    jobs never stop."""

    #: How this policy divides the servers.
    rules: ClassVar[TwoPhase]
    #: The least pause of a change of a running job, in seconds, where a published policy states one.
    restart_seconds: ClassVar[float] = 0.0
    borrows = True

    def reallocate(self, problem: Problem) -> Answer:
        """One tick of the scheduler."""
        verdicts = take_all(problem)
        columns = problem.columns
        # Jobs in the middle of a change keep their GPUs.
        seen = problem.sharing if isinstance(problem, SharedProblem) else sharing_of(problem)
        sharing = set_aside(seen, columns, columns.locked)
        division = self.divided(problem, sharing)
        pauses = problem.jobs

        def pause_seconds(row: int, gpus: int) -> float:
            level = int(np.searchsorted(pauses.levels[row], gpus))
            pause = float(pauses.pause[row, min(level, pauses.pause.shape[1] - 1)])
            return max(pause, self.restart_seconds if columns.gpus[row] else 0.0)

        shared = place(
            division.workers,
            division.role,
            sharing.demands.gpus_per_worker,
            held_by(columns, ~columns.locked),
            sharing.servers,
            columns.ids,
            pause_seconds,
            sharing.blocked,
        )
        shared = put_back(shared, sharing, columns)
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
            job_memory=self.noted(problem, division),
            flexible=shared.flexible,
            server_roles=shared.role,
        )

    def divided(self, problem: Problem, sharing: Sharing) -> Division:
        """Divide the servers: the workers of each job on each server."""
        rules = chosen_rules(self.rules, problem.settings.two_phase)
        return divide(sharing.fleet, sharing.workers(problem.columns), sharing.demands, rules)

    def noted(self, problem: Problem, division: Division) -> FloatArray | None:
        """What the policy notes about each job for its next decision, in its `memory_columns`."""
        return None


def chosen_rules(rules: TwoPhase, options: TwoPhaseOptions | None) -> TwoPhase:
    """The policy's rules with the operator's choices applied.

    The order of shortest jobs and the kind of knapsack apply only to policies that use them.
    """
    if options is None:
        return rules
    changed = chosen(TwoPhaseOptions, options)
    shortest = (BaseOrder.SHORTEST_AT_BASE, BaseOrder.SHORTEST_AT_MOST)
    if rules.order in shortest:
        changed["order"] = shortest[options.shortest_at_most]
    knapsacks = (Growth.KNAPSACK, Growth.SINGLE_KNAPSACK)
    if rules.growth in knapsacks:
        changed["growth"] = knapsacks[options.single_knapsack]
    return replace(rules, **changed)
