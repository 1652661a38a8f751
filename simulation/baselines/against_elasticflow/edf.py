"""Earliest deadline first: the whole cluster to the job that is due first.

The baseline of ElasticFlow section 6 (figures 6 to 11), after Liu and Layland's rule.
"""

from __future__ import annotations

from math import inf

from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.policies.dispatching import answer_with_sizes, take_all
from scheduling.policies.without_promises import WithoutPromises, contest
from simulation.baselines.against_elasticflow.size_kernels import largest_in_order


class Edf(WithoutPromises):
    """In deadline order, each job gets the largest level that still raises its throughput.

    Source: the paper's description of its EDF baseline (a job scales out until its throughput stops rising).
    The policy admits every job and reserves nothing: a late job keeps its place in the order. It decides only
    the next slot, since plans beyond it would change nothing now.
    """

    name = "edf"

    def reallocate(self, problem: Problem) -> Answer:
        """The largest level that is left, job by job in the order (deadline, submission, id)."""
        verdicts = take_all(problem)
        field = contest(problem)
        wanted = field.kept
        order = field.rows[problem.by_deadline[field.rows].argsort()]
        largest_in_order(problem.jobs, order, field.gpus, wanted)
        return answer_with_sizes(problem, verdicts, wanted, next_wake_at=inf)
