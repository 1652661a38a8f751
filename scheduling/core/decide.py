"""The two questions put to the core: who may come in, and who gets which GPUs next.

``admit`` decides newcomers at once while present allocations stay as they are; ``replan`` does that
and then divides the cluster anew from the next slot on (ElasticFlow section 4; spec 2.11).
"""

from __future__ import annotations

from scheduling.core.arrays import Plans, copy_plans, differing
from scheduling.core.decision import Decision
from scheduling.core.offers import find_offer, what_if
from scheduling.core.problem import Problem
from scheduling.core.reallocation import Planner
from scheduling.core.snapshot import Snapshot, StoredPlan

__all__ = ["admit", "find_offer", "replan", "what_if"]


def admit(snapshot: Snapshot) -> Decision:
    """Decide the newcomers, one by one in submission order, and touch nobody's GPUs.

    Plans are given for newcomers that are not declined and for jobs whose plan changed; the
    others keep their stored plans. Raises ValueError for a snapshot that contradicts itself.
    """
    planner = Planner(snapshot)
    jobs = planner.problem.snapshot.jobs
    verdicts = planner.admission.decide_newcomers()
    declined = {verdict.job_id for verdict in verdicts if not verdict.admitted}
    plans = copy_plans(planner.admission.plans)
    newcomers = [row for row in planner.problem.newcomers if jobs[row].id not in declined]
    promised = set(planner.admission.rows)
    plans = planner.forecast_unpromised(plans, [row for row in newcomers if row not in promised])
    changed = differing(plans, planner.problem.stored)
    rows = sorted({*newcomers, *(row for row in promised if changed[row] and row < len(jobs))})
    return Decision(
        verdicts=tuple(verdicts),
        plans=_by_id(planner.problem, plans, rows),
        placements={job.id: job.placement for job in jobs if job.id not in declined},
        changes=(),
        at_risk=planner.at_risk_ids(),
        next_wake_at=planner.first_change_at(plans, declined),
        used_stored_plans=planner.admission.used_stored,
    )


def replan(snapshot: Snapshot) -> Decision:
    """Decide the newcomers, then reallocate all GPUs from ``next_slot_at`` on.

    Grants that would cost more pauses than promises can bear are dropped; a promise never is.
    Raises ValueError for a snapshot that contradicts itself.
    """
    planner = Planner(snapshot)
    jobs = planner.problem.snapshot.jobs
    verdicts = planner.admission.decide_newcomers()
    declined = {verdict.job_id for verdict in verdicts if not verdict.admitted}
    outcome = planner.reallocate(declined)
    rows = [row for row, job in enumerate(jobs) if job.id not in declined and outcome.plans.length[row] > 0]
    wake = planner.next_wake(outcome.plans, rows)
    return Decision(
        verdicts=tuple(verdicts),
        plans=_by_id(planner.problem, outcome.plans, rows),
        placements={
            job.id: outcome.placements[row] for row, job in enumerate(jobs) if job.id not in declined
        },
        changes=outcome.changes,
        at_risk=planner.at_risk_ids(),
        next_wake_at=wake + snapshot.now,
        used_stored_plans=planner.admission.used_stored,
        notes=outcome.notes,
    )


def _by_id(problem: Problem, plans: Plans, rows: list[int]) -> dict[str, StoredPlan]:
    stored = problem.stored_plans(plans, rows)
    return {problem.snapshot.jobs[row].id: plan for row, plan in zip(rows, stored, strict=True)}
