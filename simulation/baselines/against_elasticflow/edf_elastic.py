"""Elastic scaling in deadline order without admission control: ElasticFlow that admits every job.

The variant "EDF + elastic scaling" of ElasticFlow section 6.4 (figure 9).
"""

from __future__ import annotations

from math import inf

import numpy as np

from scheduling.core.elasticflow.elastic_allocation import Growing, fill_unpromised, grant_leftover
from scheduling.core.elasticflow.first_growth import GrowthRules
from scheduling.core.elasticflow.growth_experience import unknown_seconds
from scheduling.core.elasticflow.minimum_satisfactory_share import NO_HEAD
from scheduling.core.plans.timeline import EVERYTHING, PROMISES, free_until
from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import Plans, no_plans
from scheduling.core.question.snapshot import IntArray
from scheduling.policies.dispatching import answer_with_sizes, take_all
from scheduling.policies.without_promises import Contest, WithoutPromises, contest
from simulation.baselines.against_elasticflow.elastic_kernels import fill_or_rush, next_sizes, queues

EVERY_GRANT = 1 << 40


class EdfElastic(WithoutPromises):
    """Minimum satisfactory shares in deadline order, then grants by GPU time saved.

    Source: the paper's text. A job that cannot meet its deadline gets all GPUs it can use until it
    ends, still in deadline order. So one late job takes GPUs from later ones: admission control exists to
    prevent that. Best effort is filled last, shortest first. Deviations from the published simulation: grants
    go by GPU time saved (there by GPU time added), and plans include the pauses of changes of level.
    """

    name = "edf_elastic"

    def reallocate(self, problem: Problem) -> Answer:
        """Fill jobs by deadline (shares, or all free GPUs where late), then best effort, then grant leftover
        GPUs."""
        verdicts = take_all(problem)
        field = contest(problem)
        plans = self._planned(problem, field)
        wanted, wake = next_sizes(problem.jobs, plans, field.rows, field.kept, problem.slots)
        return answer_with_sizes(
            problem, verdicts, wanted, plans=plans, next_wake_at=problem.now + float(wake)
        )

    def _planned(self, problem: Problem, field: Contest) -> Plans:
        jobs, slots = problem.jobs, problem.slots
        due_rows, free_rows = queues(field.rows, problem.columns.service_class, problem.by_deadline)
        if free_rows.size:
            seconds = jobs.work[free_rows] / jobs.throughput[free_rows, 0]
            free_rows = free_rows[np.argsort(seconds, kind="stable")]
        timeline = problem.open_timeline()
        timeline.free[PROMISES] = timeline.free[EVERYTHING]
        plans, met, timeline = fill_or_rush(
            jobs, no_plans(jobs.work.size), due_rows, problem.due, timeline, slots,
            problem.suffix,
        )  # fmt: skip
        if free_rows.size:
            heads = np.full(jobs.work.size, NO_HEAD)
            plans, timeline = fill_unpromised(jobs, plans, free_rows, heads, timeline, slots)
        if free_until(timeline, slots.origin + slots.seconds) == 0:
            return plans
        late = due_rows[~met[due_rows]]
        growing = Growing(
            rows=np.concatenate((due_rows, free_rows)),
            promised=met,
            due=np.where(met, problem.due, inf),
            rank=problem.by_deadline,
            start_order=self._start_order(jobs.work.size, late, free_rows),
        )
        gain = problem.settings.minimum_gain_iterations
        rules = GrowthRules(slots, problem.suffix, gain, unknown_seconds(problem))
        plans, _ = grant_leftover(jobs, plans, growing, timeline, rules, EVERY_GRANT)
        return plans

    def _start_order(self, rows: int, late: IntArray, best_effort: IntArray) -> IntArray:
        """The order of first levels from leftover GPUs: late jobs by deadline, then best effort, shortest
        first."""
        order = np.zeros(rows, dtype=np.int64)
        waiting = np.concatenate((late, best_effort))
        order[waiting] = np.arange(waiting.size)
        return order
