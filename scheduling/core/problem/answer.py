"""The answer of a decision as arrays, and its conversion to a `Decision`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import BoolArray, Placements, Plans, rows_where
from scheduling.core.question.decision import Change, Decision, Verdict
from scheduling.core.question.snapshot import FloatArray, IntArray


@dataclass(frozen=True)
class Answer:
    """What a policy decided about a `Problem`, with the problem's rows."""

    #: The problem that was decided.
    problem: Problem
    #: Verdicts on newcomers, in the order of rows.
    verdicts: tuple[Verdict, ...]
    #: Plans of the jobs and held offers.
    plans: Plans
    #: Marks rows whose plan is to be stored; the other jobs keep their stored plan, or have none.
    planned: BoolArray
    #: Marks newcomers that are refused or that get no verdict yet (`undecided`); they get no plan.
    declined: BoolArray
    #: GPUs of every job from ``next_slot_at`` on.
    placements: Placements
    #: Changes of jobs, in an order in which GPUs are free when needed.
    changes: tuple[Change, ...]
    #: Rows of promised jobs whose promise no plan keeps.
    at_risk: tuple[int, ...]
    #: When the policy must decide again at the latest, in seconds on the caller's axis.
    next_wake_at: float
    #: Whether stored plans were used because jobs could not be filled afresh.
    used_stored_plans: bool = False
    #: Sentences about the decision, for logs.
    notes: tuple[str, ...] = ()
    #: The row of each change.
    changed: tuple[int, ...] = ()
    #: What the policy notes about each job for its next decision, shaped (job, column); None without.
    job_memory: FloatArray | None = None
    #: What the policy notes about the cluster for its next decision.
    cluster_memory: FloatArray = field(default_factory=lambda: np.zeros(0))
    #: Marks the GPUs of the placements that flexible workers hold, from policies that use on-loan servers.
    flexible: BoolArray | None = None
    #: The role of every server, from policies that use on-loan servers.
    server_roles: IntArray | None = None


def rows_of(verdicts: tuple[Verdict, ...] | list[Verdict], problem: Problem) -> BoolArray:
    """Marks newcomers that the verdicts refuse, and newcomers without a verdict.

    ``verdicts`` are those of the first newcomers, in the order of rows.
    """
    declined = problem.columns.newcomer.copy()
    for row, verdict in zip(problem.newcomers, verdicts, strict=False):
        declined[row] = not verdict.admitted
    return declined


def undecided(answer: Answer) -> tuple[str, ...]:
    """Ids of the newcomers that wait for their verdict, in the order in which they will be decided."""
    ids = answer.problem.columns.ids
    # Not all that follow the last verdict: a best-effort newcomer may have got borrowed GPUs before its turn.
    decided = {verdict.job_id for verdict in answer.verdicts}
    return tuple(ids[row] for row in answer.problem.newcomers if ids[row] not in decided)


def as_decision(answer: Answer) -> Decision:
    """The answer by job id, with times on the caller's axis."""
    problem = answer.problem
    ids = problem.columns.ids
    rows = rows_where(answer.planned).tolist()
    stored = problem.stored_plans(answer.plans, rows)
    memory = answer.job_memory
    return Decision(
        verdicts=answer.verdicts,
        undecided=undecided(answer),
        plans={ids[row]: plan for row, plan in zip(rows, stored, strict=True)},
        placements={
            ids[row]: answer.placements.of(row) for row in range(problem.count) if not answer.declined[row]
        },
        changes=answer.changes,
        at_risk=tuple(ids[row] for row in answer.at_risk),
        next_wake_at=answer.next_wake_at,
        used_stored_plans=answer.used_stored_plans,
        notes=answer.notes,
        memory=tuple(answer.cluster_memory.tolist()),
        job_memory=(
            {}
            if memory is None
            else {
                ids[row]: tuple(memory[row].tolist())
                for row in range(problem.count)
                if not answer.declined[row]
            }
        ),
        flexible=_flexible(answer),
    )


def _flexible(answer: Answer) -> dict[str, tuple[bool, ...]]:
    """Marks of flexible workers' GPUs, by id of each job that holds GPUs; empty where no on-loan servers are
    divided."""
    if answer.flexible is None:
        return {}
    offsets, ids = answer.placements.offsets, answer.problem.columns.ids
    return {
        ids[row]: tuple(answer.flexible[offsets[row] : offsets[row + 1]].tolist())
        for row in rows_where(np.diff(offsets) > 0).tolist()
    }
