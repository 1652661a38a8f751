"""The two entry points of the core: admission of newcomers, and reallocation of GPUs.

``admit`` decides newcomers at once and leaves present allocations as they are. ``replan`` decides newcomers
and then divides the cluster anew from the next slot on (ElasticFlow section 4). Both take a
snapshot; ``decide_newcomers`` and ``reallocate`` are the same for callers that hold arrays.
"""

from __future__ import annotations

import numpy as np

from scheduling.core.elasticflow.first_growth import FirstGrowth
from scheduling.core.elasticflow.growth_experience import first_worth_growing, next_notes
from scheduling.core.elasticflow.offers import find_offer, what_if
from scheduling.core.elasticflow.reallocation import Planner
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.problem.answer import Answer, as_decision, rows_of
from scheduling.core.problem.problem import Problem, build_problem
from scheduling.core.question.arrays import Placements, Plans, copy_plans, differing, rows_where
from scheduling.core.question.decision import Decision
from scheduling.core.question.snapshot import Snapshot

__all__ = ["admit", "decide_newcomers", "find_offer", "reallocate", "replan", "what_if"]


def admit(snapshot: Snapshot) -> Decision:
    """Decide the newcomers one by one in submission order; all jobs keep their GPUs.

    The decision has plans for accepted newcomers and for jobs whose plan changed; the other jobs keep their
    stored plans. Raises ValueError for an inconsistent snapshot.
    """
    return as_decision(decide_newcomers(build_problem(snapshot)))


def replan(snapshot: Snapshot) -> Decision:
    """Decide the newcomers, then reallocate all GPUs from ``next_slot_at`` on.

    Grants of leftover GPUs whose pauses promised plans cannot bear are dropped; promises are not. Raises
    ValueError for an inconsistent snapshot.
    """
    return as_decision(reallocate(build_problem(snapshot)))


def decide_newcomers(problem: Problem, *, search: SearchLimits | None = None) -> Answer:
    """`admit` on arrays."""
    planner = Planner(problem, search=search)
    admission = planner.admission
    verdicts = tuple(admission.decide_newcomers())
    declined = rows_of(verdicts, problem)
    plans = copy_plans(admission.plans)
    newcomers = [row for row in problem.newcomers if not declined[row]]
    promised = set(admission.rows)
    plans = planner.forecast_unpromised(plans, [row for row in newcomers if row not in promised])
    planned = np.zeros(problem.count, dtype=np.bool_)
    planned[newcomers] = True
    rows = np.array([row for row in admission.rows if row < problem.count], dtype=np.int64)
    planned[rows] |= differing(plans, problem.stored)[rows]
    columns = problem.columns
    return Answer(
        problem=problem,
        verdicts=verdicts,
        plans=plans,
        planned=planned,
        declined=declined,
        placements=Placements(columns.addresses, columns.offsets),
        changes=(),
        at_risk=tuple(sorted(admission.at_risk)),
        next_wake_at=planner.first_change_at(plans, set(rows_where(declined).tolist())),
        used_stored_plans=admission.used_stored,
        cluster_memory=admission.bid_prices.memory(),
    )


def reallocate(
    problem: Problem,
    *,
    search: SearchLimits | None = None,
    growth: FirstGrowth | None = None,
    ageing: bool = False,
    experience: bool = False,
) -> Answer:
    """`replan` on arrays. ``growth``, ``ageing``, ``experience``: see `Planner`."""
    planner = Planner(problem, search=search, growth=growth, ageing=ageing, experience=experience)
    admission = planner.admission
    verdicts = tuple(admission.decide_newcomers())
    declined = rows_of(verdicts, problem)
    outcome = planner.reallocate(set(rows_where(declined).tolist()))
    planned = _with_plan(outcome.plans, problem) & ~declined
    wake = planner.next_wake(outcome.plans, rows_where(planned))
    notes = None
    if experience:
        gpus = np.diff(outcome.changes.placements.offsets)
        notes = next_notes(problem, gpus)
        wake = min(wake, first_worth_growing(problem, gpus, notes))
    return Answer(
        problem=problem,
        verdicts=verdicts,
        plans=outcome.plans,
        planned=planned,
        declined=declined,
        placements=outcome.changes.placements,
        changes=outcome.changes.changes,
        changed=outcome.changes.rows,
        at_risk=tuple(sorted(admission.at_risk)),
        next_wake_at=wake + problem.now,
        used_stored_plans=admission.used_stored,
        job_memory=notes,
        cluster_memory=admission.bid_prices.memory(),
        notes=outcome.notes,
    )


def _with_plan(plans: Plans, problem: Problem) -> np.ndarray:
    """Marks rows that have a plan; held offers are left out."""
    return np.asarray(plans.length[: problem.count] > 0)
